"""The format `amqp`: messages of a queue as a stream or a batch of rows, and rows as messages to an exchange.

    messages = spark.readStream.format("amqp").option("queue", "orders").option("spoolDir", "/data/spool/orders").load()
    rows.write.format("amqp").option("exchange", "results").option("routingKey", "done").mode("append").save()

Options of both (names in any case; one that is not known is an error):

    url                      amqp:// or amqps://user:password@host:port/vhost, or each by itself:
    host port vhost          127.0.0.1, 5672, /
    user password            guest, guest
    heartbeat                60 seconds, or what the URL says
    cacertfile               PEM file of who signed the broker's certificate; else the system's
    certfile keyfile         PEM files of the client's own certificate, where the broker asks for one

Of reading:

    queue                    required; must exist
    mode                     spool when spoolDir is given, else direct: see below; stream for streams, with options of its own
    spoolDir                 a folder that driver and executors reach; lives and dies with the checkpoint
    maxMessagesPerTrigger    10000; also called maxOffsetsPerTrigger
    maxBytesPerTrigger       268435456; of bodies in mode direct, of files, about, in mode spool
    maxWaitMs                200: how long a batch waits to become as large as it may
    prefetchCount            2 x maxMessagesPerTrigger + 1000, at most 65535: messages held and not acked, and so the memory
    numPartitions            2
    segmentRows              10000 messages in a file of the spool, at most
    maxSpoolBytes            4294967296: a spool as large as that takes no more until Spark has committed some of it
    includeHeaders           true
    headersAs                map (of text) or json (one object, with types)
    failOnDataLoss           true: a spool that lacks what was planned ends the query
    connectionAttempts       10 in a row that fail end the query
    retryDelayMs             1000 between them
    consumerTag              made by pika
    consumerPriority         0
    limit                    10000, at most 65535: messages of a batch read

Of reading with mode=stream, from queues with x-queue-type=stream:

    queue                    one stream, or
    queues                   several: names between commas, or a list in JSON; or
    superStream              a name: the streams NAME-0, NAME-1 and so on that there are when the query starts
    startingOffsets          earliest; also latest (or next), last (the last chunk), an offset, a time as 2026-01-31T12:00:00Z, an
                             interval as 2h or 7D, or JSON with one of these for each: {"orders-0": 17, "orders-1": "latest"}
    endingOffsets            latest; of a batch, and any of the same
    maxRecordsPerTrigger     1000000, of all streams together; also called maxOffsetsPerTrigger and maxMessagesPerTrigger
    minPartitions            2: ranges at least that a batch is cut into, and each stream one at least; also called numPartitions
    prefetchCount            5000: messages that a task has credit for, at most
    failOnDataLoss           true: what retention took before it was read is an error; false: it is told in the log of the task
    maxWaitMs                200: how long the end is waited at when there is nothing new
    includeHeaders headersAs connectionAttempts retryDelayMs    as above

Of writing:

    exchange                 goes before a column `exchange`; without both the default exchange
    routingKey               goes before a column `routing_key`; one of both is required
    mandatory                true: a row that no queue gets fails the task
    confirmTimeoutMs         30000 without a confirm fail the task
    maxInFlight              5000 rows published and not confirmed
    deliveryMode             2, where the column `delivery_mode` does not say
    stampBatch               false; true, of a stream: headers x-spark-query, -batch, -partition, -row, to tell what came twice

Columns: `messages.ddl`; of streams `partition` as well, the number of the stream, and `offset` is the stream's own. Of writing,
`body` (BINARY or STRING) is required and every property may be there; `redelivered`, `queue`, `offset`, `partition` and
`received_at` are left out of the message.

What is promised, in every mode: nothing is lost. What may come twice:

    direct    after a crash or a lost connection the batches that Spark had not committed, and the last that it had. Messages stay
              in the queue until Spark has committed their batch: a batch must not take longer than the broker waits for acks.
    spool     after a crash the one segment that was on disk and not yet acked; from there on exactly once, into a sink that
              writes a repeated batch once. The faster one.
    stream    nothing, into a sink that writes a repeated batch once: a range of offsets can be read again
    sink      a task or a batch that is done again publishes again.

A batch read acks nothing (`source.PeekReader`), and `drain.drain` acks when a block has succeeded. trigger(once=True) is
refused, for it would never ack; trigger(availableNow=True) reads what the queue has ready when it starts and acks all of it.
Continuous triggers and asynchronous progress tracking do not fit: an ack waits for the commit log. Two queries on one queue share
its messages.

pika, which talks to the broker here, reads fractions in headers (float, double) as whole numbers.
"""
