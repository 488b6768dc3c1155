// The payments service without any protection: what a proxy is put before.
const { count, pay } = require(`${process.env.PAYMENTS}/payments.js`);
const http = require('http');

const [port, effects] = process.argv.slice(2);
http
  .createServer(async (req, res) => {
    const path = new URL(req.url, 'http://plain').pathname;
    if (path.startsWith('/count/')) return res.end(String(count(effects, decodeURIComponent(path.slice(7)))));
    const chunks = [];
    for await (const chunk of req) chunks.push(chunk);
    let order;
    try {
      order = JSON.parse(Buffer.concat(chunks));
    } catch {
      return res.writeHead(400).end('not JSON');
    }
    const { status, headers, body } = await pay(effects, path, order);
    res.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));
  })
  .listen(Number(port), '127.0.0.1');
