// An Express application without a word of OpenTelemetry: each route calls the other application.
const express = require('express');
const log = require('pino')();

const [port, stock] = process.argv.slice(2);
const app = express();

app.get('/items/:item', async (request, response) => {
  const found = await (await fetch(`${stock}/stock/${request.params.item}`)).json();
  log.info({ item: request.params.item }, 'item shown');
  response.json(found);
});

app.get('/broken', async (request, response) => {
  const found = await fetch(`${stock}/broken`);
  if (!found.ok) throw new Error(`the stock answered ${found.status}`);
  response.json(await found.json());
});

const server = app.listen(Number(port), '127.0.0.1');
process.once('SIGTERM', () => server.close(() => process.exit()));
