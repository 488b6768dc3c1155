// express-idempotency with its defaults, as its README shows it.
const { count, pay } = require(`${process.env.PAYMENTS}/payments.js`);
const express = require('express');
const idempotency = require('express-idempotency');

const [port, effects] = process.argv.slice(2);
const app = express();
app.get('/count/:tag', (req, res) => res.send(String(count(effects, req.params.tag))));
app.use(express.json({ limit: '8mb' }));
app.use(idempotency.idempotency());

const take = async (req, res, next) => {
  try {
    const service = idempotency.getSharedIdempotencyService();
    // The middleware has answered already.
    if (service.isHit(req)) return;
    const { status, headers, body } = await pay(effects, req.path, req.body);
    res.status(status).set(headers).send(body);
  } catch (error) {
    next(error);
  }
};
app.post('/payments', take);
app.put('/payments', take);
app.post('/refunds', take);
app.listen(Number(port), '127.0.0.1');
