// The service that is protected: an effect takes 40 ms, or `pace_ms`, and happens in the middle.
const crypto = require('crypto');
const fs = require('fs');

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// On disk when it returns.
function append(effects, tag) {
  const file = fs.openSync(effects, 'a');
  fs.writeSync(file, `${tag}\n`);
  fs.fdatasyncSync(file);
  fs.closeSync(file);
}

// Takes effect and gives the answer: status, headers, body.
exports.pay = async (effects, path, order) => {
  const half = Math.min(order.pace_ms ?? 40, 10000) / 2;
  await sleep(half);
  append(effects, order.reference ?? '');
  await sleep(half);
  if (order.fail === true) return { status: 500, headers: {}, body: { error: 'something broke after the payment' } };
  const id = `pay_${crypto.randomUUID()}`;
  const headers = { location: `${path}/${id}`, 'x-receipt': `receipt of ${id}` };
  return { status: 201, headers, body: { id, reference: order.reference, order } };
};

exports.count = (effects, tag) => {
  if (!fs.existsSync(effects)) return 0;
  return fs.readFileSync(effects, 'utf8').split('\n').filter((line) => line === tag).length;
};
