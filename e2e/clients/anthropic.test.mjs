// Anthropic's own client, at /v1/messages.
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import { builtin, cancelled, eventually, idle, key, keyed, model, same, story } from './support.mjs'

const client = (url, options) => new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0, ...options })

// told is an error as the client has it, without its request's id, which is its own.
const told = (error) => {
  const { request_id, ...rest } = error.error
  if (request_id !== undefined) assert.equal(request_id, error.requestID)
  return rest
}

const question = {
  model, max_tokens: 16, temperature: 0,
  system: [{ type: 'text', text: story, cache_control: { type: 'ephemeral' } }],
  messages: [{ role: 'user', content: [{ type: 'text', text: 'Who moved upon the waters?' }] }],
}

same('messages', builtin, async (url) => {
  const { data, request_id } = await client(url).messages.create(question).withResponse()
  assert.equal(data.type, 'message')
  assert.ok(data.content[0].text)
  return { text: data.content[0].text, stop: data.stop_reason, tokens: data.usage.output_tokens, id: request_id === null ? 'none' : 'one' }
})

same('messages, streamed', builtin, async (url) => {
  const whole = await client(url).messages.create(question)
  const stream = client(url).messages.stream(question)
  let text = ''
  stream.on('text', (piece) => { text += piece })
  const final = await stream.finalMessage()
  assert.equal(text, whole.content[0].text)
  assert.deepEqual(final.content, whole.content)
  assert.equal(final.stop_reason, whole.stop_reason)
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens)
  return final.content
})

same('tools, by an engine without', builtin, async (url) => {
  const answer = await client(url).messages.create({
    ...question,
    tools: [{ name: 'get_weather', input_schema: { type: 'object', properties: { city: { type: 'string' } } } }],
    messages: [
      ...question.messages,
      { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'get_weather', input: { city: 'Paris' } }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: 'It rains.' }, { type: 'text', text: 'So?' }] },
    ],
  }).catch((e) => e)
  return answer instanceof Anthropic.APIError ? { status: answer.status, error: told(answer) } : answer.content
})

same('abort in mid-stream', builtin, async (url) => {
  const before = await cancelled(builtin)
  const stream = client(url).messages.stream({ ...question, system: undefined, messages: [{ role: 'user', content: 'Go on.' }], max_tokens: 6000 })
  let pieces = 0
  stream.on('text', () => { if (++pieces === 3) stream.abort() })
  await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError)
  await eventually('an engine goes on for a client that left', async () => (await idle(builtin)) && (await cancelled(builtin)) === before + 1)
})

same('an unknown model', builtin, async (url) => {
  const error = await client(url).messages.create({ ...question, model: 'claude-none' }).catch((e) => e)
  assert.ok(error instanceof Anthropic.NotFoundError, error)
  return told(error)
})

same('a request at fault', builtin, async (url) => {
  const error = await client(url).messages.create({ ...question, max_tokens: 0 }).catch((e) => e)
  assert.ok(error instanceof Anthropic.BadRequestError, error)
  return told(error)
})

same('a wrong key', [keyed], async (url) => {
  const error = await client(url, { apiKey: 'sk-wrong' }).messages.create(question).catch((e) => e)
  assert.ok(error instanceof Anthropic.AuthenticationError, error)
  const answer = await client(url, { apiKey: key }).messages.create(question)
  return { error: told(error), text: answer.content[0].text }
})
