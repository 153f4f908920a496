// The provider's own client library judges the model double: what it streams is what the library expects, and what the
// library sends is accepted, while each wrong use is refused with the provider's error and recorded.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { scripted, startDouble, until, within } from "./harness.mjs";

const MODEL = "claude-scripted";
const BASH = { name: "bash", description: "Runs a command", input_schema: { type: "object", properties: { command: { type: "string" } } } };
const THINKING = { type: "enabled", budget_tokens: 2_000 };

let double;
let client;
before(async () => {
  double = await startDouble();
  client = new Anthropic({ apiKey: "a-good-key", baseURL: double.url, maxRetries: 0 });
});
after(() => double.stop());

const user = (content) => ({ role: "user", content });
const call = (messages, more = {}) => ({ model: MODEL, max_tokens: 4_000, messages, ...more });

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

describe("right use", () => {
  afterEach(async () => assert.deepEqual(await double.takeFailures(), [], "the double found no fault"));

  test("text streams in the asked number of deltas and the final message holds it whole", async () => {
    const text = "One, two, three and four.";
    const stream = client.messages.stream(call([user(scripted("Say it.", [{ text, chunks: 5 }]))]));
    const deltas = [];
    stream.on("text", (delta) => deltas.push(delta));
    const message = await stream.finalMessage();
    assert.equal(deltas.length, 5);
    assert.equal(deltas.join(""), text);
    assert.deepEqual(message.content.map(({ type, text }) => ({ type, text })), [{ type: "text", text }]);
    assert.equal(message.stop_reason, "end_turn");
    assert.equal(message.role, "assistant");
    assert.equal(message.usage.output_tokens, 5);
    assert.ok(message.usage.input_tokens > 5);
  });

  test("events come in the provider's order", async () => {
    const prompt = scripted("Go.", [{ thinking: "Hm." }, { text: "Yes." }, { tool: "bash", input: { command: "ls" }, chunkBytes: 8 }]);
    const events = await collect(await client.messages.create(call([user(prompt)], { stream: true, thinking: THINKING, tools: [BASH] })));
    const names = events.map((event) => event.type === "content_block_delta" ? `${event.index}:${event.delta.type}` : event.type);
    assert.deepEqual(names, [
      "message_start",
      "content_block_start", "0:thinking_delta", "0:signature_delta", "content_block_stop",
      "content_block_start", "1:text_delta", "content_block_stop",
      "content_block_start", "2:input_json_delta", "2:input_json_delta", "2:input_json_delta", "content_block_stop",
      "message_delta", "message_stop",
    ]);
    assert.equal(events[0].message.stop_reason, null);
    assert.equal(events[0].message.usage.output_tokens, 1);
    assert.equal(events.at(-2).delta.stop_reason, "tool_use");
  });

  test("thinking with its signature goes round over two tool calls", async () => {
    const prompt = scripted(
      "Look.",
      [{ thinking: "I look first." }, { redactedThinking: true }, { text: "Looking." }, { tool: "bash", input: { command: "ls" } }, { tool: "bash", input: { command: "pwd" } }],
      [{ thinking: "Now I know." }, { text: "It says: {{lastToolResult}}" }],
    );
    const messages = [user(prompt)];
    const first = await client.messages.stream(call(messages, { thinking: THINKING, tools: [BASH] })).finalMessage();
    assert.deepEqual(first.content.map((block) => block.type), ["thinking", "redacted_thinking", "text", "tool_use", "tool_use"]);
    assert.deepEqual(first.content.filter((block) => block.type === "tool_use").map((block) => block.input), [{ command: "ls" }, { command: "pwd" }]);
    const results = first.content.filter((block) => block.type === "tool_use").map((block) => ({ type: "tool_result", tool_use_id: block.id, content: `ran ${block.input.command}` }));
    messages.push({ role: "assistant", content: first.content }, user(results));
    const second = await client.messages.stream(call(messages, { thinking: THINKING, tools: [BASH] })).finalMessage();
    assert.deepEqual(second.content.map((block) => block.text ?? block.thinking), ["Now I know.", "It says: ran pwd"]);
    messages.push({ role: "assistant", content: second.content }, user("And without a script?"));
    const third = await client.messages.stream(call(messages, { thinking: THINKING, tools: [BASH] })).finalMessage();
    assert.match(third.content[0].text, /^You said: "And without a script\?"/);
  });

  test("newer models think adaptively, and show it only when asked", async () => {
    const prompt = user(scripted("Think.", [{ thinking: "I look." }, { text: "Yes." }]));
    for (const [thinking, shown] of [
      [undefined, ""], [{ type: "adaptive" }, ""], [{ type: "adaptive", display: "omitted" }, ""],
      [{ type: "adaptive", display: "summarized" }, "I look."], [{ type: "between_tools" }, "I look."],
    ]) {
      const options = { model: "claude-sonnet-5-5", thinking, output_config: { effort: "low" } };
      const messages = [prompt];
      const first = await client.messages.stream(call(messages, options)).finalMessage();
      assert.deepEqual(first.content.map((block) => block.text ?? block.thinking), [shown, "Yes."]);
      messages.push({ role: "assistant", content: first.content }, user("And?"));
      await client.messages.stream(call(messages, options)).finalMessage();
    }
  });

  test("a large argument streams in small pieces and arrives whole", async () => {
    const tools = [{ name: "write", input_schema: { type: "object" } }];
    const prompt = scripted("Write.", [{ tool: "write", input: { path: "a", content: "{{repeat:5000:0123456789äöü€🙂\n}}" }, chunkBytes: 100 }]);
    const stream = client.messages.stream(call([user(prompt)], { tools }));
    let pieces = 0;
    stream.on("inputJson", () => { pieces += 1; });
    const message = await stream.finalMessage();
    assert.deepEqual(message.content[0].input, { path: "a", content: "0123456789äöü€🙂\n".repeat(5000) });
    assert.ok(pieces > 1_000, `${pieces} pieces`);
  });

  test("an empty argument object streams as no text at all", async () => {
    const message = await client.messages.stream(call([user(scripted("Go.", [{ tool: "bash", input: {} }]))], { tools: [BASH] })).finalMessage();
    assert.deepEqual(message.content[0].input, {});
  });

  test("a call without a stream gives the same message", async () => {
    const prompt = user(scripted("Go.", [{ thinking: "Hm." }, { text: "Yes." }, { tool: "bash", input: { command: "ls" } }]));
    const options = { thinking: THINKING, tools: [BASH] };
    const streamed = await client.messages.stream(call([prompt], options)).finalMessage();
    const whole = await client.messages.create(call([prompt], options));
    const shape = (message) => message.content.map(({ type, text, thinking, input }) => ({ type, text, thinking, input }));
    assert.deepEqual(shape(whole), shape(streamed));
    assert.deepEqual(whole.usage, streamed.usage);
    assert.equal(whole.stop_reason, streamed.stop_reason);
    assert.notEqual(whole.id, streamed.id);
  });

  test("a file wish is fulfilled with tools and answered with their output", async () => {
    const tools = [BASH, { name: "write", input_schema: { type: "object" } }];
    const messages = [user('Create a file hello.txt with the text "Hello, workspace".')];
    const calls = [];
    for (;;) {
      const message = await client.messages.stream(call(messages, { tools })).finalMessage();
      messages.push({ role: "assistant", content: message.content });
      if (message.stop_reason === "end_turn") break;
      const use = message.content.find((block) => block.type === "tool_use");
      calls.push({ name: use.name, input: use.input });
      messages.push(user([{ type: "tool_result", tool_use_id: use.id, content: use.name === "bash" ? "Hello, workspace\n" : "Wrote 17 bytes" }]));
    }
    assert.deepEqual(calls, [
      { name: "write", input: { path: "hello.txt", content: "Hello, workspace\n" } },
      { name: "bash", input: { command: "cat 'hello.txt'" } },
    ]);
    assert.equal(messages.at(-1).content[0].text, "The file hello.txt is written. Read back with `cat`, it holds: Hello, workspace");
  });

  test("a second call reads from the prompt cache what the first wrote", async () => {
    const system = [{ type: "text", text: "You are a helpful assistant with many words to say.", cache_control: { type: "ephemeral" } }];
    const marked = (text) => user([{ type: "text", text, cache_control: { type: "ephemeral" } }]);
    const first = await client.messages.create(call([marked("Cached question one")], { system }));
    assert.ok(first.usage.cache_creation_input_tokens > 0);
    assert.equal(first.usage.cache_read_input_tokens, 0);
    const messages = [marked("Cached question one"), { role: "assistant", content: first.content }, marked("And two")];
    const second = await client.messages.create(call(messages, { system }));
    assert.equal(second.usage.cache_read_input_tokens, first.usage.cache_creation_input_tokens);
    assert.ok(second.usage.cache_creation_input_tokens > 0);
  });

  test("stop reasons are as scripted", async () => {
    for (const reason of ["max_tokens", "refusal", "stop_sequence", "pause_turn"]) {
      const message = await client.messages.stream(call([user(scripted("Go.", [{ text: "x" }, { stop: reason }]))])).finalMessage();
      assert.equal(message.stop_reason, reason);
    }
  });

  test("each error status is the library's own class, with headers", async () => {
    for (const [status, kind, type] of [
      [400, Anthropic.BadRequestError, "invalid_request_error"],
      [403, Anthropic.PermissionDeniedError, "permission_error"],
      [413, Anthropic.APIError, "request_too_large"],
      [429, Anthropic.RateLimitError, "rate_limit_error"],
      [500, Anthropic.InternalServerError, "api_error"],
      [504, Anthropic.InternalServerError, "timeout_error"],
      [529, Anthropic.InternalServerError, "overloaded_error"],
    ]) {
      const prompt = user(scripted("Go.", [{ error: { status, retryAfter: 7 } }, { text: "ok" }]));
      await assert.rejects(client.messages.create(call([prompt], { stream: true })), (error) => {
        assert.ok(error instanceof kind, `${status}: ${error.constructor.name}`);
        assert.deepEqual([error.status, error.type, error.headers.get("retry-after")], [status, type, "7"]);
        assert.match(error.requestID, /^req_/);
        return true;
      });
    }
  });

  test("the library's own retry gets past errors that wear off", async () => {
    const patient = new Anthropic({ apiKey: "a-good-key", baseURL: double.url, maxRetries: 2 });
    const prompt = user(scripted("Be patient.", [{ error: { status: 529, retryAfter: 0.05 } }, { error: { status: 429, retryAfter: 0.05 } }, { text: "Here." }]));
    const before = (await double.requests()).counters.requests;
    const message = await patient.messages.stream(call([prompt])).finalMessage();
    assert.equal(message.content[0].text, "Here.");
    assert.equal((await double.requests()).counters.requests - before, 3);
  });

  test("a rejected key, an unknown model and a prompt beyond the window are the provider's errors", async () => {
    const stranger = new Anthropic({ apiKey: "invalid-key", baseURL: double.url, maxRetries: 0 });
    await assert.rejects(stranger.messages.create(call([user("hi")])), Anthropic.AuthenticationError);
    await assert.rejects(client.messages.create({ ...call([user("hi")]), model: "no-such-model" }), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create(call([user("word ".repeat(200_001))])), (error) =>
      error instanceof Anthropic.BadRequestError && /prompt is too long: \d+ tokens > 200000 maximum/.test(error.message));
    await assert.rejects(client.messages.create(call([user("x".repeat(32_000_001))])), (error) => error.status === 413);
  });

  test("an error event in mid-stream is an error with its type after the text before it", async () => {
    const stream = client.messages.stream(call([user(scripted("Go.", [{ text: "So far" }, { errorEvent: "overloaded_error" }]))]));
    let text = "";
    stream.on("text", (delta) => { text += delta; });
    await assert.rejects(stream.finalMessage(), (error) => error instanceof Anthropic.APIError && error.type === "overloaded_error");
    assert.equal(text, "So far");
  });

  // The pause lets the library hand out what it has: a broken fetch body drops what was not read yet.
  test("a cut is a broken connection, not an end", async () => {
    const stream = client.messages.stream(call([user(scripted("Go.", [{ text: "So far" }, { sleep: 100 }, { cut: true }]))]));
    let text = "";
    stream.on("text", (delta) => { text += delta; });
    await assert.rejects(stream.finalMessage(), (error) => !(error instanceof Anthropic.BadRequestError));
    assert.equal(text, "So far");
  });

  test("a hang runs into the library's timeout and is noted as abandoned", async () => {
    const hasty = new Anthropic({ apiKey: "a-good-key", baseURL: double.url, maxRetries: 0, timeout: 300 });
    const before = (await double.requests()).counters.abandoned;
    await assert.rejects(hasty.messages.create(call([user(scripted("Go.", [{ hang: 60_000 }, { text: "late" }]))])), Anthropic.APIConnectionTimeoutError);
    await until("the double notes it", async () => (await double.requests()).counters.abandoned === before + 1);
  });

  test("a reader that leaves ends its stream at once", async () => {
    const before = (await double.requests()).counters;
    const stream = client.messages.stream(call([user(scripted("Go.", [{ text: "a b c d e f g h i j", chunks: 10, delayMs: 10_000 }]))]));
    await within(5_000, "the start", new Promise((resolve) => stream.on("streamEvent", resolve)));
    stream.abort();
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
    await until("the double notes it", async () => (await double.requests()).counters.abandoned === before.abandoned + 1);
  });

  test("200 streams of 50 deltas 20 ms apart run side by side without loss", async () => {
    const words = Array.from({ length: 50 }, (_, index) => `w${index} `).join("");
    const started = performance.now();
    const texts = await Promise.all(Array.from({ length: 200 }, async (_, index) => {
      const prompt = user(scripted(`Number ${index}.`, [{ text: words, chunks: 50, delayMs: 20 }]));
      return (await client.messages.stream(call([prompt])).finalMessage()).content[0].text;
    }));
    const elapsed = performance.now() - started;
    assert.deepEqual(new Set(texts), new Set([words]));
    assert.ok(elapsed >= 1_000, `${elapsed} ms is less than the script's own pauses`);
  });
});

describe("wrong use is refused and recorded", () => {
  const use = (id, name = "bash") => ({ type: "tool_use", id, name, input: { command: "ls" } });
  const result = (id, more = {}) => ({ type: "tool_result", tool_use_id: id, content: "out", ...more });
  const assistant = (...content) => ({ role: "assistant", content });
  const text = (text, more = {}) => ({ type: "text", text, ...more });
  const marked = (word) => text(word, { cache_control: { type: "ephemeral" } });
  const tools = { tools: [BASH] };
  const cases = [
    ["no messages", "messages", []],
    ["an assistant first", "roles", [assistant(text("hi")), user("x")]],
    ["two users in a row", "roles", [user("a"), user("b")]],
    ["an assistant last", "roles", [user("a"), assistant(text("b"))]],
    ["an unknown role", "roles", [{ role: "system", content: "a" }]],
    ["an empty message", "content", [user("")]],
    ["an empty content list", "content", [user([])]],
    ["an empty text block", "content", [user([text("")])]],
    ["a blank text block", "content", [user([text(" \n")])]],
    ["an unknown key in a block", "content", [user([text("a", { state: "done" })])]],
    ["an unknown block", "content", [user([{ type: "reasoning", text: "a" }])]],
    ["a call without a result", "missing-tool-result", [user("a"), assistant(use("toolu_A")), user("b")], tools],
    ["one result for two calls", "missing-tool-result", [user("a"), assistant(use("toolu_A"), use("toolu_B")), user([result("toolu_A")])], tools],
    ["a result without a call", "orphan-tool-result", [user([result("toolu_A")])], tools],
    ["a result that comes a message late", "orphan-tool-result", [user("a"), assistant(use("toolu_A")), user([result("toolu_A")]), assistant(text("b")), user([result("toolu_A")])], tools],
    ["two results for one call", "duplicate-tool-result", [user("a"), assistant(use("toolu_A")), user([result("toolu_A"), result("toolu_A")])], tools],
    ["text before a result", "tool-result-order", [user("a"), assistant(use("toolu_A")), user([text("b"), result("toolu_A")])], tools],
    ["results in another order", "tool-result-order", [user("a"), assistant(use("toolu_A"), use("toolu_B")), user([result("toolu_B"), result("toolu_A")])], tools],
    ["a repeated tool id", "tool-use-id", [user("a"), assistant(use("toolu_A")), user([result("toolu_A")]), assistant(use("toolu_A")), user([result("toolu_A")])], tools],
    ["an illegal tool id", "tool-use-id", [user("a"), assistant(use("toolu.A")), user([result("toolu.A")])], tools],
    ["a call of an undeclared tool", "tool-name", [user("a"), assistant(use("toolu_A", "nosuch")), user([result("toolu_A")])], tools],
    ["arguments that are no object", "tool-use-input", [user("a"), assistant({ ...use("toolu_A"), input: "ls" }), user([result("toolu_A")])], tools],
    ["an empty error result", "tool-result", [user("a"), assistant(use("toolu_A")), user([result("toolu_A", { content: "", is_error: true })])], tools],
    ["an image that is none", "source", [user([{ type: "image", source: { type: "base64", media_type: "image/bmp", data: "AAAA" } }])]],
    ["a made-up signature", "thinking-signature", [user("a"), assistant({ type: "thinking", thinking: "x", signature: "EqQB" }, text("b")), user("c")]],
    ["made-up redacted data", "thinking-signature", [user("a"), assistant({ type: "redacted_thinking", data: "EqQB" }, text("b")), user("c")]],
    ["a thinking budget for a model that knows only adaptive", "thinking", [user("a")], { model: "claude-sonnet-5-5", thinking: THINKING }],
    ["adaptive thinking for a model that knows only budgets", "thinking", [user("a")], { model: "claude-haiku-4-5", thinking: { type: "adaptive" } }],
    ["thinking switched off where it cannot be", "thinking", [user("a")], { model: "claude-sonnet-5-5", thinking: { type: "disabled" } }],
    ["a temperature for a model that takes none", "sampling", [user("a")], { model: "claude-sonnet-5-5", temperature: 1 }],
    ["an unknown effort", "effort", [user("a")], { output_config: { effort: "most" } }],
    ["a budget of max_tokens", "thinking", [user("a")], { thinking: { type: "enabled", budget_tokens: 4_000 } }],
    ["a budget below the least", "thinking", [user("a")], { thinking: { type: "enabled", budget_tokens: 1_000 } }],
    ["thinking with a temperature", "thinking", [user("a")], { thinking: THINKING, temperature: 0 }],
    ["no max_tokens", "max-tokens", [user("a")], { max_tokens: undefined }],
    ["an empty model", "model", [user("a")], { model: "" }],
    ["five cache breakpoints", "cache-breakpoints", [user([marked("a"), marked("b"), marked("c")])], { system: [marked("d"), marked("e")] }],
    ["an unknown kind of cache", "cache-control", [user([text("a", { cache_control: { type: "persistent" } })])]],
    ["a system prompt of another shape", "system", [user("a")], { system: { text: "b" } }],
    ["a system block that is no text", "system", [user("a")], { system: [{ type: "image" }] }],
    ["two tools of one name", "tools", [user("a")], { tools: [BASH, BASH] }],
    ["a tool without a schema", "tools", [user("a")], { tools: [{ name: "bash" }] }],
    ["a tool name with a dot", "tools", [user("a")], { tools: [{ ...BASH, name: "a.b" }] }],
    ["an unknown field", "fields", [user("a")], { sessionId: "x" }],
    ["a script with a mistake", "model-script", [user(scripted("Go.", [{ txt: "a" }]))]],
  ];
  for (const [name, invariant, messages, more] of cases) {
    test(name, async () => {
      await assert.rejects(client.messages.create(call(messages, more)), (error) => error instanceof Anthropic.BadRequestError && error.type === "invalid_request_error");
      assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), [invariant]);
    });
  }

  async function thought() {
    const prompt = user(scripted("Think.", [{ thinking: "One." }, { thinking: "Two." }, { tool: "bash", input: { command: "ls" } }], [{ text: "ok" }]));
    const { content } = await client.messages.stream(call([prompt], { thinking: THINKING, ...tools })).finalMessage();
    return { prompt, content, answer: user([result(content[2].id)]) };
  }
  for (const [name, invariant, change] of [
    ["changed thinking", "thinking-signature", ([one, ...rest]) => [{ ...one, thinking: "One!" }, ...rest]],
    ["thinking in another order", "thinking-order", ([one, two, ...rest]) => [two, one, ...rest]],
    ["thinking left out in a tool loop", "thinking-kept", ([, two, ...rest]) => [two, ...rest]],
  ]) {
    test(name, async () => {
      const { prompt, content, answer } = await thought();
      const messages = [prompt, { role: "assistant", content: change(content) }, answer];
      await assert.rejects(client.messages.create(call(messages, { thinking: THINKING, ...tools })), Anthropic.BadRequestError);
      assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), [invariant]);
    });
  }

  for (const [name, invariant, status, headers, body] of [
    ["no key", "x-api-key", 401, { "x-api-key": "" }, "{}"],
    ["no version", "version", 400, { "anthropic-version": "" }, "{}"],
    ["another version", "version", 400, { "anthropic-version": "2024-01-01" }, "{}"],
    ["another content type", "content-type", 400, { "content-type": "text/plain" }, "{}"],
    ["no JSON", "json", 400, {}, "{"],
    ["no object", "body", 400, {}, "[]"],
  ]) {
    test(name, async () => {
      const good = { "x-api-key": "a-good-key", "anthropic-version": "2023-06-01", "content-type": "application/json" };
      const response = await fetch(`${double.url}/v1/messages`, { method: "POST", headers: { ...good, ...headers }, body });
      const { type, error } = await response.json();
      assert.deepEqual([response.status, type, error.type], [status, "error", status === 401 ? "authentication_error" : "invalid_request_error"]);
      assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), [invariant]);
    });
  }

  test("neighbours of one role are joined when the double is told to", async () => {
    const joining = await startDouble("--join-roles");
    try {
      const other = new Anthropic({ apiKey: "a-good-key", baseURL: joining.url, maxRetries: 0 });
      const messages = [user("a"), user("b"), assistant(use("toolu_A")), user([result("toolu_A")]), user("c")];
      const message = await other.messages.create(call(messages, tools));
      assert.match(message.content[0].text, /^You said: "c"/);
      await assert.rejects(other.messages.create(call([user("a"), user([text("")])])), Anthropic.BadRequestError);
      assert.deepEqual((await joining.takeFailures()).map((failure) => failure.invariant), ["content"]);
    } finally {
      await joining.stop();
    }
  });

  test("a key is never shown", async () => {
    const shown = JSON.stringify([await double.requests(), await double.failures()]) + double.log();
    assert.ok(!shown.includes("a-good-key"));
  });
});
