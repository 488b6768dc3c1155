// @node-idempotency/core on Redis: its two calls around a route, as its README shows them. The statuses are those of the
// draft, which its own plug-ins use, too.
const { count, pay } = require(`${process.env.PAYMENTS}/payments.js`);
const express = require('express');
const { Idempotency, IdempotencyError, IdempotencyErrorCodes } = require('@node-idempotency/core');
const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');

const STATUS = {
  [IdempotencyErrorCodes.REQUEST_IN_PROGRESS]: 409,
  [IdempotencyErrorCodes.IDEMPOTENCY_FINGERPRINT_MISSMATCH]: 422,
  [IdempotencyErrorCodes.IDEMPOTENCY_KEY_LEN_EXEEDED]: 400,
};

const [port, effects] = process.argv.slice(2);
const app = express();
app.get('/count/:tag', (req, res) => res.send(String(count(effects, req.params.tag))));
app.use(express.json({ limit: '8mb' }));

async function main() {
  const storage = new RedisStorageAdapter({ url: process.env.REDIS_URL });
  await storage.connect();
  const idempotency = new Idempotency(storage);

  const take = async (req, res, next) => {
    const request = { method: req.method, headers: req.headers, body: req.body, path: req.path };
    try {
      const known = await idempotency.onRequest(request);
      if (known) return res.status(known.additional.status).send(known.body);
      const { status, headers, body } = await pay(effects, req.path, req.body);
      await idempotency.onResponse(request, { body, additional: { status } });
      res.status(status).set(headers).send(body);
    } catch (error) {
      if (!(error instanceof IdempotencyError)) return next(error);
      res.status(STATUS[error.code] ?? 400).send({ error: error.message });
    }
  };
  app.post('/payments', take);
  app.put('/payments', take);
  app.post('/refunds', take);
  app.listen(Number(port), '127.0.0.1');
}
main();
