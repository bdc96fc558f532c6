// amqplib against the broker named by the first argument. Every case runs on its own connection or channel under names
// that begin with the second argument, and deletes what it made. The last line printed is a JSON object of
// case -> "ok" or what went wrong; the exit code is 0 when all are ok.

'use strict';

const assert = require('node:assert/strict');
const amqp = require('amqplib');
const callbackApi = require('amqplib/callback_api');

const [url, prefix, cutUrl] = process.argv.slice(2);
const CASE_TIMEOUT_MS = 20000;
let counter = 0;
const newName = () => `${prefix}-${++counter}`;

const closed = (emitter) =>
  new Promise((resolve) => emitter.once('error', resolve));

async function withConnection(work, options) {
  const connection = await amqp.connect(url, options);
  try {
    return await work(connection);
  } finally {
    await connection.close();
  }
}

const withChannel = (work) =>
  withConnection(async (connection) => work(await connection.createChannel(), connection));

// Resolves with the messages once `count` of them were consumed from `queue`.
function consumeMany(channel, queue, count, options) {
  return new Promise((resolve, reject) => {
    const messages = [];
    channel
      .consume(
        queue,
        (message) => {
          messages.push(message);
          if (messages.length === count) resolve(messages);
        },
        options,
      )
      .catch(reject);
  });
}

async function getWhenThere(channel, queue, options) {
  for (;;) {
    const message = await channel.get(queue, options);
    if (message) return message;
  }
}

const cases = {
  async server_properties() {
    await withConnection(async (connection) => {
      const { capabilities, version } = connection.connection.serverProperties;
      assert.match(version, /^\d+\.\d+/);
      for (const name of ['publisher_confirms', 'exchange_exchange_bindings', 'basic.nack', 'consumer_cancel_notify',
        'connection.blocked', 'consumer_priorities', 'authentication_failure_close', 'per_consumer_qos',
        'direct_reply_to']) {
        assert.equal(capabilities[name], true, name);
      }
    });
  },

  async publish_and_consume() {
    await withChannel(async (channel) => {
      const queue = newName();
      const ok = await channel.assertQueue(queue, { durable: false, autoDelete: true });
      assert.deepEqual(ok, { queue, messageCount: 0, consumerCount: 0 });
      await channel.prefetch(10);
      for (let i = 0; i < 100; i++) channel.sendToQueue(queue, Buffer.from(`${i}`), { messageId: `m${i}` });
      const bodies = await new Promise((resolve, reject) => {
        const seen = [];
        channel.consume(queue, (message) => {
          seen.push([message.content.toString(), message.properties.messageId]);
          channel.ack(message);
          if (seen.length === 100) resolve(seen);
        }).catch(reject);
      });
      assert.deepEqual(bodies, Array.from({ length: 100 }, (_, i) => [`${i}`, `m${i}`]));
    });
  },

  async properties_round_trip() {
    await withChannel(async (channel) => {
      const { queue } = await channel.assertQueue('', { exclusive: true });
      const headers = { text: 'ü', int: 7, big: 2 ** 40, negative: -5, float: 1.5, yes: true, nothing: null,
        list: [1, 'two', { three: 3 }], table: { nested: { deep: true } } };
      const properties = { contentType: 'text/plain', contentEncoding: 'utf-8', headers, deliveryMode: 2, priority: 4,
        correlationId: 'c', replyTo: 'r', expiration: '60000', messageId: 'm', timestamp: 1700000000, type: 't',
        userId: 'guest', appId: 'a' };
      channel.sendToQueue(queue, Buffer.from('x'), properties);
      const message = await getWhenThere(channel, queue, { noAck: true });
      for (const [name, value] of Object.entries(properties)) {
        assert.deepEqual(message.properties[name], value, name);
      }
    });
  },

  async large_and_empty_bodies() {
    await withConnection(async (connection) => {
      const channel = await connection.createConfirmChannel();
      const { queue } = await channel.assertQueue('', { exclusive: true });
      for (const size of [0, 1, 4088, 4089, 1000000]) {
        channel.sendToQueue(queue, Buffer.alloc(size, size % 251));
        await channel.waitForConfirms();
        const message = await getWhenThere(channel, queue, { noAck: true });
        assert.ok(message.content.equals(Buffer.alloc(size, size % 251)), `${size} octets`);
      }
    });
  },

  async quorum_queue_counts_deliveries() {
    await withConnection(async (connection) => {
      const channel = await connection.createConfirmChannel();
      const queue = newName();
      await channel.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'quorum', 'x-delivery-limit': 2 } });
      channel.sendToQueue(queue, Buffer.from('x'));
      await channel.waitForConfirms();
      for (const count of [0, 1, 2]) {
        const message = await getWhenThere(channel, queue);
        assert.equal(message.properties.headers['x-delivery-count'] ?? 0, count);
        channel.nack(message);
      }
      assert.equal(await channel.get(queue), false);
      await channel.deleteQueue(queue);
    });
  },

  async stream_is_read_from_an_offset() {
    await withConnection(async (connection) => {
      const publisher = await connection.createConfirmChannel();
      const queue = newName();
      await publisher.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': 'stream' } });
      for (let i = 0; i < 50; i++) publisher.sendToQueue(queue, Buffer.from(`${i}`));
      await publisher.waitForConfirms();
      for (let times = 0; times < 2; times++) {
        const channel = await connection.createChannel();
        await channel.prefetch(100);
        const messages = await consumeMany(channel, queue, 30, { arguments: { 'x-stream-offset': 20 } });
        messages.forEach((message, i) => {
          assert.equal(message.properties.headers['x-stream-offset'], 20 + i);
          assert.equal(message.content.toString(), `${20 + i}`);
          channel.ack(message);
        });
        await channel.close();
      }
      await publisher.deleteQueue(queue);
    });
  },

  async confirms() {
    await withConnection(async (connection) => {
      const channel = await connection.createConfirmChannel();
      const { queue } = await channel.assertQueue('', { exclusive: true });
      let confirmed = 0;
      for (let i = 0; i < 500; i++) {
        channel.sendToQueue(queue, Buffer.from('x'), {}, (error) => {
          assert.equal(error, null);
          confirmed++;
        });
      }
      await channel.waitForConfirms();
      assert.equal(confirmed, 500);
      assert.equal((await channel.checkQueue(queue)).messageCount, 500);
      assert.deepEqual(await channel.purgeQueue(queue), { messageCount: 500 });
    });
  },

  async mandatory_is_returned_before_its_confirm() {
    await withConnection(async (connection) => {
      const channel = await connection.createConfirmChannel();
      const events = [];
      channel.on('return', (message) => events.push([message.fields.replyCode, message.content.toString()]));
      channel.publish('', newName(), Buffer.from('lost'), { mandatory: true }, () => events.push('confirmed'));
      await channel.waitForConfirms();
      assert.deepEqual(events, [[312, 'lost'], 'confirmed']);
    });
  },

  async nack_requeues_and_rejects() {
    await withChannel(async (channel) => {
      const { queue } = await channel.assertQueue('', { exclusive: true });
      channel.sendToQueue(queue, Buffer.from('x'));
      const first = await getWhenThere(channel, queue);
      assert.equal(first.fields.redelivered, false);
      channel.nack(first);
      const second = await getWhenThere(channel, queue);
      assert.equal(second.fields.redelivered, true);
      channel.reject(second, false);
      assert.equal(await channel.get(queue), false);
    });
  },

  async ack_all_and_recover() {
    await withChannel(async (channel) => {
      const { queue } = await channel.assertQueue('', { exclusive: true });
      for (let i = 0; i < 5; i++) channel.sendToQueue(queue, Buffer.from(`${i}`));
      for (let i = 0; i < 5; i++) await getWhenThere(channel, queue);
      await channel.recover();
      for (let i = 0; i < 5; i++) {
        const message = await getWhenThere(channel, queue);
        assert.deepEqual([message.content.toString(), message.fields.redelivered], [`${i}`, true]);
      }
      channel.ackAll();
      assert.equal(await channel.get(queue), false);
    });
  },

  async rpc_over_direct_reply_to() {
    await withConnection(async (serving) => {
      await withConnection(async (calling) => {
        const server = await serving.createChannel();
        const { queue } = await server.assertQueue('', { exclusive: false, autoDelete: true });
        await server.consume(queue, (message) => {
          server.sendToQueue(message.properties.replyTo, Buffer.from(`${Number(message.content) ** 2}`), {
            correlationId: message.properties.correlationId });
          server.ack(message);
        });
        const client = await calling.createChannel();
        const answers = consumeMany(client, 'amq.rabbitmq.reply-to', 20, { noAck: true });
        for (let i = 0; i < 20; i++) {
          client.sendToQueue(queue, Buffer.from(`${i}`), { replyTo: 'amq.rabbitmq.reply-to', correlationId: `c${i}` });
        }
        const got = (await answers).map((m) => [m.properties.correlationId, Number(m.content)]);
        assert.deepEqual(got, Array.from({ length: 20 }, (_, i) => [`c${i}`, i * i]));
      });
    });
  },

  async exchanges_and_bindings() {
    await withChannel(async (channel) => {
      const [source, destination] = [newName(), newName()];
      await channel.assertExchange(source, 'topic', { durable: false });
      await channel.assertExchange(destination, 'fanout', { durable: false, autoDelete: true });
      const { queue } = await channel.assertQueue('', { exclusive: true });
      await channel.bindExchange(destination, source, 'a.#');
      await channel.bindQueue(queue, destination, '');
      channel.publish(source, 'a.b.c', Buffer.from('yes'));
      channel.publish(source, 'b.a', Buffer.from('no'));
      assert.equal((await getWhenThere(channel, queue, { noAck: true })).content.toString(), 'yes');
      assert.equal(await channel.get(queue), false);
      await channel.unbindExchange(destination, source, 'a.#');
      await channel.unbindQueue(queue, destination, '');
      await channel.checkExchange(source);
      await channel.deleteExchange(source);
      await channel.deleteExchange(destination);
    });
  },

  async headers_exchange() {
    await withChannel(async (channel) => {
      const { queue } = await channel.assertQueue('', { exclusive: true });
      await channel.bindQueue(queue, 'amq.headers', '', { 'x-match': 'any', [prefix]: 1, other: prefix });
      channel.publish('amq.headers', '', Buffer.from('no'), { headers: { [prefix]: 2 } });
      channel.publish('amq.headers', '', Buffer.from('yes'), { headers: { [prefix]: 1 } });
      assert.equal((await getWhenThere(channel, queue, { noAck: true })).content.toString(), 'yes');
    });
  },

  async alternate_exchange() {
    await withChannel(async (channel) => {
      const [main, alternate] = [newName(), newName()];
      await channel.assertExchange(alternate, 'fanout', { durable: false });
      await channel.assertExchange(main, 'direct', { durable: false, alternateExchange: alternate });
      const { queue } = await channel.assertQueue('', { exclusive: true });
      await channel.bindQueue(queue, alternate, '');
      channel.publish(main, 'nobody', Buffer.from('x'));
      assert.equal((await getWhenThere(channel, queue, { noAck: true })).fields.exchange, main);
      await channel.deleteExchange(main);
      await channel.deleteExchange(alternate);
    });
  },

  async consumer_cancelled_by_the_broker() {
    await withConnection(async (connection) => {
      const [consuming, deleting] = [await connection.createChannel(), await connection.createChannel()];
      const { queue } = await consuming.assertQueue(newName(), { durable: false });
      const cancelled = consumeMany(consuming, queue, 1, {});
      await deleting.checkQueue(queue);
      await consuming.checkQueue(queue);
      await deleting.deleteQueue(queue);
      assert.deepEqual(await cancelled, [null]);
    });
  },

  async consumer_tag_and_cancel() {
    await withChannel(async (channel) => {
      const { queue } = await channel.assertQueue('', { exclusive: true });
      const { consumerTag } = await channel.consume(queue, () => {}, { consumerTag: 'mine', exclusive: true });
      assert.equal(consumerTag, 'mine');
      assert.equal((await channel.checkQueue(queue)).consumerCount, 1);
      await channel.cancel('mine');
      assert.equal((await channel.checkQueue(queue)).consumerCount, 0);
    });
  },

  async channel_error_on_an_absent_queue() {
    await withConnection(async (connection) => {
      const channel = await connection.createChannel();
      const [error] = await Promise.all([closed(channel), assert.rejects(channel.checkQueue(newName()), /404/)]);
      assert.equal(error.code, 404);
      assert.match(error.message, /NOT_FOUND - no queue/);
      await (await connection.createChannel()).assertQueue('', { exclusive: true });
    });
  },

  async channel_error_on_another_queue_of_the_name() {
    await withConnection(async (connection) => {
      const [first, second] = [await connection.createChannel(), await connection.createChannel()];
      const queue = newName();
      await first.assertQueue(queue, { durable: false });
      const [error] = await Promise.all([closed(second), assert.rejects(second.assertQueue(queue, { durable: true }))]);
      assert.equal(error.code, 406);
      assert.match(error.message, /inequivalent arg 'durable'/);
      await first.deleteQueue(queue);
    });
  },

  async channel_error_on_an_unknown_delivery_tag() {
    await withConnection(async (connection) => {
      const channel = await connection.createChannel();
      const failed = closed(channel);
      channel.ack({ fields: { deliveryTag: 82 } });
      const error = await failed;
      assert.equal(error.code, 406);
      assert.match(error.message, /PRECONDITION_FAILED - unknown delivery tag 82/);
    });
  },

  async channel_error_on_an_absent_exchange() {
    await withConnection(async (connection) => {
      const channel = await connection.createConfirmChannel();
      const failed = closed(channel);
      const published = new Promise((resolve) => channel.publish(newName(), 'k', Buffer.from('x'), {}, resolve));
      assert.equal((await failed).code, 404);
      assert.ok((await published) instanceof Error, 'the unconfirmed publish fails with the channel');
    });
  },

  async refused_login() {
    const wrong = new URL(url);
    wrong.password = 'wrong';
    await assert.rejects(amqp.connect(wrong.href), /403 \(ACCESS[_-]REFUSED\).*Login was refused using authentication mechanism PLAIN/);
  },

  async unknown_vhost() {
    const wrong = new URL(url);
    wrong.pathname = '/nowhere';
    await assert.rejects(amqp.connect(wrong.href), /Expected ConnectionOpenOk; got <ConnectionClose/);
  },

  async connection_settings() {
    const tuned = new URL(url);
    tuned.search = '?frameMax=8192&channelMax=16&heartbeat=1';
    const connection = await amqp.connect(tuned.href, { clientProperties: { connection_name: newName() } });
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('', { exclusive: true });
    channel.sendToQueue(queue, Buffer.alloc(50000, 1));
    await channel.waitForConfirms();
    assert.equal((await getWhenThere(channel, queue, { noAck: true })).content.length, 50000);
    // amqplib fails a connection on which nothing came for two intervals
    await new Promise((resolve, reject) => {
      connection.once('error', reject);
      setTimeout(resolve, 3000);
    });
    await channel.checkQueue(queue);
    await connection.updateSecret(Buffer.from('renewed'), 'as it does before a token expires');
    await connection.close();
  },

  async many_channels() {
    await withConnection(async (connection) => {
      const channels = await Promise.all(Array.from({ length: 100 }, () => connection.createChannel()));
      const queues = await Promise.all(channels.map((channel) => channel.assertQueue('', { exclusive: true })));
      assert.equal(new Set(queues.map(({ queue }) => queue)).size, 100);
      await Promise.all(channels.map((channel) => channel.close()));
    });
  },

  async callback_api() {
    await new Promise((resolve, reject) => {
      const attempt = (next) => (error, value) => {
        if (error) return reject(error);
        try { return next(value); } catch (failure) { return reject(failure); }
      };
      callbackApi.connect(url, attempt((connection) => {
        connection.createConfirmChannel(attempt((channel) => {
          channel.assertQueue('', { exclusive: true }, attempt(({ queue }) => {
            channel.consume(queue, (message) => {
              assert.equal(message.content.toString(), 'called back');
              channel.ack(message);
              connection.close(attempt(resolve));
            }, {}, attempt(() => channel.sendToQueue(queue, Buffer.from('called back'))));
          }));
        }));
      }));
    });
  },

  async queue_arguments() {
    await withChannel(async (channel) => {
      const queue = newName();
      const options = { durable: true, messageTtl: 60000, expires: 60000, maxLength: 10, maxPriority: 5,
        deadLetterExchange: 'amq.fanout', deadLetterRoutingKey: 'dead', arguments: { 'x-overflow': 'drop-head' } };
      await channel.assertQueue(queue, options);
      await channel.assertQueue(queue, options);
      await channel.deleteQueue(queue);
    });
  },

  async cut_connection_is_reported_and_its_exclusive_queue_is_free() {
    const connection = await amqp.connect(cutUrl);
    const failed = new Promise((resolve) => {
      connection.once('error', resolve);
      connection.once('close', resolve);
    });
    const channel = await connection.createChannel();
    const queue = newName();
    await channel.assertQueue(queue, { exclusive: true });
    // the test that runs this script cuts the relayed connection when it reads this line
    console.log('cut me');
    await failed;
    await withChannel((again) => again.assertQueue(queue, { exclusive: true }));
  },
};

// What is thrown in an event handler, as an unexpected close of a channel is, ends the case and not the process.
let failCase = () => {};
process.on('uncaughtException', (error) => failCase(error));

async function runCase(work) {
  let timer;
  const late = new Promise((_, reject) => {
    failCase = reject;
    timer = setTimeout(() => reject(new Error(`not done within ${CASE_TIMEOUT_MS} ms`)), CASE_TIMEOUT_MS);
  });
  try {
    await Promise.race([work(), late]);
    return 'ok';
  } catch (error) {
    return `${error.name}: ${error.message}`;
  } finally {
    clearTimeout(timer);
  }
}

(async () => {
  const verdict = {};
  for (const [name, work] of Object.entries(cases)) verdict[name] = await runCase(work);
  console.log(JSON.stringify(verdict));
  process.exit(Object.values(verdict).every((outcome) => outcome === 'ok') ? 0 : 1);
})();
