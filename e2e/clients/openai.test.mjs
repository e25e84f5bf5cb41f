// OpenAI's own client: what it asks is answered, and every error is the one that it
// would be with OpenAI.
import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { builtin, cancelled, eventually, idle, key, keyed, model, same, scripted, story } from './support.mjs'

const client = (url, options) => new OpenAI({ baseURL: url + '/v1', apiKey: 'none', maxRetries: 0, ...options })

const system = { role: 'system', content: story.repeat(3) }
const question = { model, messages: [system, { role: 'user', content: 'Who moved upon the waters?' }], max_tokens: 24, temperature: 0 }

// counted is usage without what depends on who asked before.
const counted = ({ prompt_tokens, completion_tokens, total_tokens }) => ({ prompt_tokens, completion_tokens, total_tokens })

same('models', builtin, async (url) => {
  const ids = []
  for await (const m of client(url).models.list()) ids.push(m.id)
  assert.equal((await client(url).models.retrieve(model)).id, model)
  await assert.rejects(client(url).models.retrieve('gpt-none'), OpenAI.NotFoundError)
  return ids
})

same('chat', builtin, async (url) => {
  const { data, response, request_id } = await client(url).chat.completions.create(question).withResponse()
  assert.ok(request_id)
  assert.match(response.headers.get('hearsay-node'), /^n\d$/)
  assert.ok(data.choices[0].message.content)
  return { text: data.choices[0].message.content, finish: data.choices[0].finish_reason, usage: counted(data.usage) }
})

same('chat, streamed with usage', builtin, async (url) => {
  const whole = await client(url).chat.completions.create(question)
  const stream = client(url).chat.completions.stream({ ...question, stream_options: { include_usage: true } })
  let text = ''
  let pieces = 0
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    pieces++
  }
  const final = await stream.finalChatCompletion()
  assert.equal(text, whole.choices[0].message.content)
  assert.equal(final.choices[0].message.content, text)
  assert.deepEqual(counted(final.usage), counted(whole.usage))
  assert.ok(pieces > 5, `${pieces} pieces`)
  return { text, finish: final.choices[0].finish_reason }
})

const tools = [{
  type: 'function',
  function: { name: 'get_weather', strict: true, parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false } },
}]

// Our engines have no tools: they answer in words, and read what tools have said.
same('tools, by an engine without', builtin, async (url) => {
  const answer = await client(url).chat.completions.create({
    ...question, tools, tool_choice: 'auto',
    messages: [
      ...question.messages,
      { role: 'assistant', content: null, tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'get_weather', arguments: '{"city":"Paris"}' } }] },
      { role: 'tool', tool_call_id: 'call_1', content: 'It rains.' },
    ],
  })
  return answer.choices[0].message
})

const ask = (url, content, more) => client(url).chat.completions.create({ model: 'scripted', messages: [{ role: 'user', content }], ...more })

same('tools', scripted, async (url) => (await ask(url, 'tool', { tools })).choices[0])

same('tools, streamed', scripted, async (url) => {
  const stream = client(url).chat.completions.stream({ model: 'scripted', messages: [{ role: 'user', content: 'tool' }], tools })
  const final = await stream.finalChatCompletion()
  return final.choices[0].message.tool_calls[0].function.arguments
})

same('tools, run by the client', scripted, async (url) => {
  const cities = []
  const runner = client(url).chat.completions.runTools({
    model: 'scripted', messages: [{ role: 'user', content: 'tool' }], tool_choice: { type: 'function', function: { name: 'get_weather' } },
    tools: [{ type: 'function', function: { ...tools[0].function, parse: JSON.parse, function: ({ city }) => { cities.push(city); return 'It rains.' } } }],
  })
  await runner.done()
  return cities
})

const format = { type: 'json_schema', json_schema: { name: 'weather', strict: true, schema: { type: 'object', properties: { city: { type: 'string' }, degrees: { type: 'number' } } } } }

same('structured output', scripted, async (url) => {
  const whole = await client(url).chat.completions.parse({ model: 'scripted', messages: [{ role: 'user', content: 'json' }], response_format: format })
  const stream = client(url).chat.completions.stream({ model: 'scripted', messages: [{ role: 'user', content: 'json' }], response_format: format })
  const streamed = await stream.finalChatCompletion()
  assert.deepEqual(JSON.parse(streamed.choices[0].message.content), JSON.parse(whole.choices[0].message.content))
  return JSON.parse(whole.choices[0].message.content)
})

same('structured output, by an engine without', builtin, async (url) =>
  (await client(url).chat.completions.create({ ...question, response_format: format })).choices[0].message)

const picture = { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=', detail: 'low' } }

// What an engine says of a request that it cannot serve is what the client is told.
same('images, by an engine that cannot see', builtin, async (url) => {
  const error = await client(url).chat.completions
    .create({ ...question, messages: [{ role: 'user', content: [{ type: 'text', text: 'What is this?' }, picture] }] })
    .catch((e) => e)
  assert.ok(error instanceof OpenAI.BadRequestError, error)
  return error.error
})

// The body that arrives at the engine is the one that the client sent, byte for byte.
same('images', scripted, async (url) => {
  let sent
  const spy = (to, init) => { sent = init.body; return fetch(to, init) }
  const answer = await client(url, { fetch: spy }).chat.completions.create({
    model: 'scripted', seed: 7, user: 'é\ud83d\ude00 </script>', metadata: { big: '12345678901234567890' },
    messages: [system, { role: 'user', content: [{ type: 'text', text: 'echo' }, picture] }],
  })
  assert.equal(answer.choices[0].message.content, sent)
  return sent
})

same('completions', builtin, async (url) => {
  const asked = { model, prompt: 'Call me Ishmael.', max_tokens: 8, temperature: 0 }
  const whole = await client(url).completions.create(asked)
  let text = ''
  for await (const chunk of await client(url).completions.create({ ...asked, stream: true })) text += chunk.choices[0]?.text ?? ''
  assert.equal(text, whole.choices[0].text)
  return { text, usage: counted(whole.usage) }
})

same('responses', builtin, async (url) => {
  const asked = { model, instructions: story, input: 'Who moved upon the waters?', max_output_tokens: 12, temperature: 0 }
  const whole = await client(url).responses.create(asked)
  const stream = client(url).responses.stream(asked)
  let text = ''
  stream.on('response.output_text.delta', (event) => { text += event.delta })
  const final = await stream.finalResponse()
  assert.ok(whole.output_text)
  assert.equal(text, whole.output_text)
  assert.equal(final.output_text, text)
  return { text, status: final.status, tokens: final.usage.total_tokens }
})

same('embeddings', builtin, async (url) => {
  const vectors = await client(url).embeddings.create({ model, input: ['the sea', 'the whale'] }) // as base64, by default
  const numbers = await client(url).embeddings.create({ model, input: 'the whale', encoding_format: 'float' })
  assert.deepEqual(vectors.data[1].embedding.map(Math.fround), numbers.data[0].embedding.map(Math.fround))
  return { dimensions: vectors.data.map((d) => d.embedding.length), usage: vectors.usage }
})

same('abort in mid-stream', builtin, async (url) => {
  const before = await cancelled(builtin)
  const stream = await client(url).chat.completions.create({ ...question, messages: [{ role: 'user', content: 'Go on.' }], max_tokens: 6000, stream: true })
  let pieces = 0
  for await (const _ of stream) if (++pieces === 3) stream.controller.abort()
  await eventually('an engine goes on for a client that left', async () => (await idle(builtin)) && (await cancelled(builtin)) === before + 1)
})

same('abort before the first byte', scripted, async (url, i) => {
  const leaving = new AbortController()
  const name = `${builtin.length}-${i}`
  const stream = await client(url).chat.completions.create({ model: 'scripted', messages: [{ role: 'user', content: 'endless ' + name }], stream: true }, { signal: leaving.signal })
  for await (const _ of stream) leaving.abort()
  await eventually('the engine was not told', async () => (await ask(url, 'left ' + name)).choices[0].message.content === 'yes')
})

same('an unknown model', builtin, async (url) => {
  const error = await client(url).chat.completions.create({ ...question, model: 'gpt-none' }).catch((e) => e)
  assert.ok(error instanceof OpenAI.NotFoundError, error)
  assert.ok(error.requestID)
  return { status: error.status, code: error.code, type: error.type, message: error.message }
})

same('a prompt that is too long', builtin, async (url) => {
  const error = await client(url).chat.completions.create({ ...question, messages: [{ role: 'user', content: story.repeat(400) }] }).catch((e) => e)
  assert.ok(error instanceof OpenAI.BadRequestError, error)
  return error.error
})

same('a wrong key', [keyed], async (url) => {
  const error = await client(url, { apiKey: 'sk-wrong' }).models.list().catch((e) => e)
  assert.ok(error instanceof OpenAI.AuthenticationError, error)
  const answer = await client(url, { apiKey: key }).chat.completions.create(question)
  return { code: error.code, text: answer.choices[0].message.content }
})

// The client waits as long as it is told, asks again, and is served.
same('a busy engine', scripted, async (url, i) => {
  const error = await ask(url, `busy first-${builtin.length}-${i}`).catch((e) => e)
  assert.ok(error instanceof OpenAI.RateLimitError, error)
  assert.equal(error.headers.get('retry-after'), '1')
  const patient = client(url, { maxRetries: 2 })
  const answer = await patient.chat.completions.create({ model: 'scripted', messages: [{ role: 'user', content: `busy then-${builtin.length}-${i}` }] })
  assert.equal(answer.choices[0].message.content, `served then-${builtin.length}-${i}`)
  return error.error
})

same('a failing engine', scripted, async (url) => {
  const error = await ask(url, 'fail').catch((e) => e)
  assert.ok(error instanceof OpenAI.InternalServerError, error)
  return { status: error.status, error: error.error }
})

// A stream that breaks off is never taken for a whole one.
same('a stream that breaks off', scripted, async (url) => {
  let text = ''
  const error = await (async () => {
    for await (const chunk of await ask(url, 'break', { stream: true })) text += chunk.choices[0]?.delta.content ?? ''
  })().catch((e) => e)
  assert.ok(error instanceof Error, 'it ended as if it were whole')
  return text
})
