// A payments service that can be asked what became of an attempt.
//
//     node service.mjs PORT JOURNAL
//
// Needs nothing but Node 18 or later. It stands behind `semel gateway` with
// `recovery = "ask:http://127.0.0.1:PORT/reconcile"`; docs/reconcile.md explains the contract. Its
// receipts are lines of a file: each is on disk before anybody hears of it, and is read back when the
// service starts. One process owns the file, and between looking and writing it does nothing else, so
// that no two requests can meet there.

import { appendFileSync, existsSync, fsyncSync, openSync, readFileSync, truncateSync } from "node:fs";
import { createServer } from "node:http";

const [port, journal] = process.argv.slice(2);

// By derived key: { refusedThrough, token, status, body }. The token says that an attempt began; the
// status comes with its answer.
const receipts = new Map();
let charges = 0;

function receipt(derivedKey) {
  if (!receipts.has(derivedKey)) receipts.set(derivedKey, { refusedThrough: 0 });
  return receipts.get(derivedKey);
}

function apply(line) {
  Object.assign(receipt(line.derivedKey), line.change);
  if (line.change.status !== undefined) charges += 1;
}

function restore() {
  if (!existsSync(journal)) return;
  const bytes = readFileSync(journal);
  // What follows the last line end was cut off by a crash; nobody has heard of it.
  const end = bytes.lastIndexOf("\n") + 1;
  truncateSync(journal, end);
  for (const line of bytes.toString("utf8", 0, end).split("\n")) if (line) apply(JSON.parse(line));
}

restore();
const file = openSync(journal, "a");

function write(derivedKey, change) {
  const line = { derivedKey, change };
  try {
    appendFileSync(file, JSON.stringify(line) + "\n");
    fsyncSync(file);
  } catch (error) {
    // Half a line may be there. Start again, and forget what nobody has heard of.
    console.error(error);
    process.exit(1);
  }
  apply(line);
}

// Why an attempt may not begin, or undefined.
function refusal(derivedKey, token) {
  if (!derivedKey || !token) return [400, { error: "come through the gateway, with an Idempotency-Key" }];
  const { refusedThrough, token: begun, status, body } = receipt(derivedKey);
  if (status !== undefined) return [status, body];
  if (token <= refusedThrough) {
    const error = `attempt ${token} came too late: tokens up to ${refusedThrough} are refused`;
    return [409, { error }, "nothing-happened"];
  }
  if (begun !== undefined) return [409, { error: "the bank has not answered yet" }];
  return undefined;
}

const routes = {
  // The effect is our own: the receipt is the charge.
  "/charges": (headers, request) => {
    const [derivedKey, token] = [headers["semel-derived-key"], Number(headers["semel-token"])];
    const told = refusal(derivedKey, token);
    if (told) return told;
    const body = { charged: request.amount };
    write(derivedKey, { token, status: 201, body });
    return [201, body];
  },

  // The effect is at a bank, which answers later: until then nobody can tell.
  "/transfers": (headers) => {
    const [derivedKey, token] = [headers["semel-derived-key"], Number(headers["semel-token"])];
    const told = refusal(derivedKey, token);
    if (told) return told;
    write(derivedKey, { token });
    return [504, { error: "the bank has not answered yet" }];
  },

  // The bank's own call, when it has decided.
  "/bank": (_, request) => {
    write(request.derived_key, { status: 201, body: { transferred: request.amount } });
    return [200, {}];
  },

  // Done, never (and late attempts are refused from now on), or cannot tell.
  "/reconcile": (_, { derived_key: derivedKey, token }) => {
    const { refusedThrough, token: begun, status, body } = receipt(derivedKey);
    if (status !== undefined) {
      const headers = { "content-type": "application/json" };
      return [200, { answer: "done", response: { status, headers, body: JSON.stringify(body) } }];
    }
    if (begun !== undefined) return [200, { answer: "cannot-tell", reason: "the bank has not answered yet" }];
    // The fence is on disk before the answer leaves.
    if (token > refusedThrough) write(derivedKey, { refusedThrough: token });
    return [200, { answer: "never", refused_through: receipt(derivedKey).refusedThrough }];
  },
};

const server = createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const text = Buffer.concat(parts).toString();
  const route = request.method === "GET" ? () => [200, { charges }] : routes[request.url];
  const [status, answer, hint] = route
    ? route(request.headers, text ? JSON.parse(text) : {})
    : [404, { error: "no such path" }];
  const body = JSON.stringify(answer);
  // A hint is believed only beside the nonce of its attempt.
  const hints = hint ? { "semel-hint": hint, "semel-nonce": request.headers["semel-nonce"] ?? "" } : {};
  response.writeHead(status, {
    "content-type": "application/json",
    "content-length": Buffer.byteLength(body),
    ...hints,
  });
  response.end(body);
});
server.listen(Number(port), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
