// An engine that this project did not write: llama.cpp, by node-llama-cpp, behind as
// much of OpenAI's API as the tests ask for. Weights, arithmetic and KV cache are
// llama.cpp's. Which slot a request gets is decided here as llama-server decides it:
// that with the longest prefix in common, if it is a tenth of the prompt, or else the
// one that was used longest ago.
//
//	node server.mjs MODEL.gguf HOST:PORT SLOTS
//
// Each slot is a context of its own that computes a prompt token by token, so that a
// text does not depend on what was cached or on who else asked: in larger batches
// sums have another order. It ends with SIGTERM or with its standard input.

import http from "node:http";
import { getLlama, LlamaLogLevel } from "node-llama-cpp";

const [file, address, slotCount] = process.argv.slice(2);
const name = "stories260K";
const outputDefault = 16;

const llama = await getLlama({ gpu: false, build: "never", progressLogs: false, logLevel: LlamaLogLevel.error, maxThreads: 1 });
const model = await llama.loadModel({ modelPath: file });
const contextSize = model.trainContextSize;

const slots = [];
for (let i = 0; i < Number(slotCount); i++) {
  const context = await model.createContext({ contextSize, sequences: 1, batchSize: 1, threads: 1 });
  slots.push({ sequence: context.getSequence(), used: 0, busy: Promise.resolve() });
}

class Rejected extends Error {}

function tokenize(text) {
  const ids = model.tokenize(text);
  return model.tokens.bos != null ? [model.tokens.bos, ...ids] : ids;
}

// The model has no chat template of its own.
function chatText(messages) {
  if (!Array.isArray(messages) || messages.some((m) => typeof m?.content !== "string")) {
    throw new Rejected("messages have to be a list whose contents are strings");
  }
  return messages.map((m) => `${m.role}: ${m.content}\n`).join("") + "assistant:";
}

// common is how many leading tokens of a prompt a slot holds. The last one is
// computed in any case.
function common(slot, tokens) {
  const held = slot.sequence.compareContextTokens(tokens).firstDifferentIndex;
  return Math.min(held, tokens.length - 1);
}

let clock = 0;

// take waits for the slot that suits a prompt best, and returns it with its release.
async function take(tokens) {
  const similar = (slot) => (common(slot, tokens) > tokens.length / 10 ? common(slot, tokens) : 0);
  const best = slots.reduce((a, b) => {
    const [x, y] = [similar(a), similar(b)];
    return y > x || (y === x && b.used < a.used) ? b : a;
  });
  best.used = ++clock;
  const before = best.busy;
  let release;
  best.busy = new Promise((resolve) => (release = resolve));
  await before;
  return [best, release];
}

// generate yields pieces of text, and in the end what there is to say of the whole.
async function* generate(tokens, { output, reuse, gone }) {
  const [slot, release] = await take(tokens);
  const sequence = slot.sequence;
  const ids = [];
  let sent = "";
  let reason = "length";
  try {
    const cached = reuse ? common(slot, tokens) : 0;
    await sequence.eraseContextTokenRanges([{ start: cached, end: sequence.nextTokenIndex }]);
    const begun = performance.now();
    let promptMs = 0;
    for await (const id of sequence.evaluate(tokens.slice(cached), { temperature: 0, yieldEogToken: true })) {
      promptMs ||= performance.now() - begun;
      if (gone()) break;
      if (model.isEogToken(id)) {
        reason = "stop";
        break;
      }
      ids.push(id);
      const text = model.detokenize(ids);
      if (!text.endsWith("\ufffd") && text.length > sent.length) {
        yield { piece: text.slice(sent.length) };
        sent = text;
      }
      if (ids.length >= output) break;
    }
    yield {
      reason,
      usage: {
        prompt_tokens: tokens.length,
        completion_tokens: ids.length,
        total_tokens: tokens.length + ids.length,
        prompt_tokens_details: { cached_tokens: cached },
      },
      timings: { cache_n: cached, prompt_n: tokens.length - cached, prompt_ms: promptMs },
    };
  } finally {
    release();
  }
}

async function complete(chat, body, req, res) {
  const tokens = tokenize(chat ? chatText(body.messages) : body.prompt);
  const output = body.max_completion_tokens ?? body.max_tokens ?? outputDefault;
  if (tokens.length + output > contextSize) {
    throw new Rejected(`${tokens.length} tokens and ${output} more do not fit into the context of ${contextSize}`);
  }
  const head = { id: `llama-${++clock}`, created: Math.floor(Date.now() / 1000), model: name };
  const object = chat ? "chat.completion" : "text_completion";
  let gone = false;
  res.on("close", () => (gone = true));
  const events = generate(tokens, { output, reuse: body.cache_prompt !== false, gone: () => gone });
  if (!body.stream) {
    let text = "";
    for await (const { piece, reason, usage, timings } of events) {
      text += piece ?? "";
      if (usage) {
        const said = chat ? { message: { role: "assistant", content: text } } : { text };
        json(res, 200, { ...head, object, choices: [{ index: 0, ...said, finish_reason: reason }], usage, timings });
      }
    }
    return;
  }
  res.writeHead(200, { "Content-Type": "text/event-stream" });
  const send = (event) => res.write(`data: ${JSON.stringify({ ...head, object: chat ? object + ".chunk" : object, ...event })}\n\n`);
  for await (const { piece, reason, usage, timings } of events) {
    const said = chat ? { delta: piece ? { content: piece } : {} } : { text: piece ?? "" };
    send({ choices: [{ index: 0, ...said, finish_reason: reason ?? null }] });
    if (usage && body.stream_options?.include_usage) send({ choices: [], usage, timings });
  }
  res.end("data: [DONE]\n\n");
}

function json(res, status, value) {
  res.writeHead(status, { "Content-Type": "application/json" });
  res.end(JSON.stringify(value));
}

async function serve(req, res) {
  const path = new URL(req.url, "http://engine").pathname;
  if (req.method === "GET") {
    if (path === "/health") return json(res, 200, { status: "ok" });
    if (path === "/v1/models") return json(res, 200, { object: "list", data: [{ id: name, object: "model", max_model_len: contextSize }] });
  }
  if (req.method !== "POST") return json(res, 404, { error: { message: "no such path", type: "not_found_error" } });
  let text = "";
  for await (const chunk of req.setEncoding("utf8")) text += chunk;
  try {
    const body = JSON.parse(text);
    if (path === "/v1/completions" && typeof body.prompt === "string") return await complete(false, body, req, res);
    if (path === "/v1/chat/completions") return await complete(true, body, req, res);
    if (path === "/tokenize") return json(res, 200, { tokens: tokenize(body.content ?? body.prompt ?? chatText(body.messages)) });
    json(res, 404, { error: { message: "no such path", type: "not_found_error" } });
  } catch (e) {
    if (!(e instanceof Rejected || e instanceof SyntaxError)) throw e;
    json(res, 400, { error: { message: e.message, type: "invalid_request_error" } });
  }
}

const [host, port] = address.split(":");
http
  .createServer((req, res) => {
    serve(req, res).catch((e) => {
      console.error(e);
      res.destroy();
    });
  })
  .listen(Number(port), host);
process.on("SIGTERM", () => process.exit(0));
process.stdin.resume().on("end", () => process.exit(0));
