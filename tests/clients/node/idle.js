// Holds connections with heartbeats; idle_clients.py says what the arguments are and what is printed.

'use strict';

const amqp = require('amqplib');

const BODY = Buffer.alloc(100);
let ending = false;

async function hold(argument) {
  const [name, , heartbeat, role, ...rest] = argument.split(',');
  const one = { name, role, lost: null, blocked: false, moved: 0 };
  const connection = await amqp.connect(`${rest.join(',')}?heartbeat=${heartbeat}`);
  const opened = process.hrtime.bigint();
  const ended = (error) => {
    if (ending || one.lost) return;
    const seconds = Number(process.hrtime.bigint() - opened) / 1e9;
    one.lost = `lost after ${seconds.toFixed(1)} s: ${error ? error.message : 'closed'}`;
  };
  one.connection = connection;
  connection.on('error', ended);
  connection.on('close', ended);
  connection.on('blocked', () => { one.blocked = true; });
  connection.on('unblocked', () => { one.blocked = false; });
  const channel = await connection.createChannel();
  channel.on('error', ended);
  const publish = () => {
    one.moved++;
    return channel.publish('', name, BODY);
  };
  if (role === 'publisher') {
    const more = () => {
      if (ending || one.lost) return;
      let room = true;
      for (let i = 0; i < 1000 && room; i++) room = publish();
      if (room) setImmediate(more);
      else channel.once('drain', more);
    };
    more();
  } else if (role === 'consumer') {
    await channel.assertQueue(name, { durable: false, autoDelete: true, maxLength: 1000 });
    await channel.consume(name, () => { one.moved++; }, { noAck: true });
  } else if (role === 'blocked') {
    publish();
  }
  return one;
}

async function end(one) {
  if (one.lost) return one.lost;
  if (one.role === 'blocked') return one.blocked ? 'ok' : 'not told that it is blocked';
  if (one.role !== 'idle') return one.moved ? 'ok' : 'nothing published or consumed';
  try {
    const channel = await one.connection.createChannel();
    await channel.assertQueue('', { exclusive: true });
    return 'ok';
  } catch (error) {
    return `of no use at the end: ${error.message}`;
  }
}

(async () => {
  const all = [];
  for (const argument of process.argv.slice(2)) all.push(await hold(argument));
  console.log('ready');
  await new Promise((resolve) => process.stdin.once('data', resolve).once('end', resolve));
  const verdict = {};
  for (const one of all) verdict[one.name] = await end(one);
  ending = true;
  console.log(JSON.stringify(verdict));
  process.exit(0);
})();
