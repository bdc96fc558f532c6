import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * RabbitMQ's Java client in each of its modes against the broker named by the first argument, through names that begin with
 * the second. The third argument is a relay to the same broker, whose connections are cut when this program prints "cut me".
 * With a fourth and fifth, the URL of a TLS listener and the authority's PEM file, everything goes over TLS, in both versions.
 * The last line printed is a JSON object of case -> "ok" or what went wrong; the exit code is 0 when all are ok.
 */
public class Cases {
    private static final int CASE_TIMEOUT_S = 20;
    private static final int IDLE_S = 7;
    private static String prefix;
    private static final AtomicInteger counter = new AtomicInteger();

    private final Mode mode;
    private final String url;
    private final String cutUrl;
    private final String tls;
    private final String authority;

    private Cases(Mode mode, String url, String cutUrl, String tls, String authority) {
        this.mode = mode;
        this.url = url;
        this.cutUrl = cutUrl;
        this.tls = tls;
        this.authority = authority;
    }

    private interface Work {
        void run() throws Exception;
    }

    private interface ChannelWork {
        void run(Channel channel) throws Exception;
    }

    private ConnectionFactory factory() throws Exception {
        return mode.factory(url, tls, authority);
    }

    private void withChannel(ChannelWork work) throws Exception {
        try (Connection connection = factory().newConnection(); Channel channel = connection.createChannel()) {
            work.run(channel);
        }
    }

    private static String newName() {
        return prefix + "-" + counter.incrementAndGet();
    }

    private static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    private static void checkEqual(Object found, Object expected) {
        check(found.equals(expected), "expected " + expected + ", got " + found);
    }

    /** The close by the broker that `work` must run into, wherever in the causes it is. */
    private static ShutdownSignalException closed(Work work) throws Exception {
        try {
            work.run();
        } catch (Exception error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof ShutdownSignalException) {
                    return (ShutdownSignalException) cause;
                }
            }
            throw error;
        }
        throw new AssertionError("nothing was closed");
    }

    private static void checkReply(ShutdownSignalException close, int code, String text) {
        Object reason = close.getReason();
        if (reason instanceof AMQP.Connection.Close) {
            checkEqual(((AMQP.Connection.Close) reason).getReplyCode(), code);
            check(((AMQP.Connection.Close) reason).getReplyText().contains(text), reason);
        } else {
            check(reason instanceof AMQP.Channel.Close, close);
            checkEqual(((AMQP.Channel.Close) reason).getReplyCode(), code);
            check(((AMQP.Channel.Close) reason).getReplyText().contains(text), reason);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static GetResponse getWhenThere(Channel channel, String queue) throws Exception {
        for (;;) {
            GetResponse response = channel.basicGet(queue, false);
            if (response != null) {
                return response;
            }
        }
    }

    private void publishConfirmConsume() throws Exception {
        withChannel(channel -> {
            String queue = channel.queueDeclare("", false, true, false, null).getQueue();
            channel.confirmSelect();
            for (int i = 0; i < 200; i++) {
                AMQP.BasicProperties properties = MessageProperties.PERSISTENT_TEXT_PLAIN.builder().messageId("m" + i)
                        .headers(Map.of("number", i, "long", 1L << 40, "yes", true)).build();
                channel.basicPublish("", queue, properties, bytes("body " + i));
            }
            channel.waitForConfirmsOrDie(10000);
            checkEqual(channel.messageCount(queue), 200L);
            channel.basicQos(10);
            BlockingQueue<String> bodies = new LinkedBlockingQueue<>();
            channel.basicConsume(queue, false, (tag, delivery) -> {
                String id = delivery.getProperties().getMessageId();
                Object number = delivery.getProperties().getHeaders().get("number");
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
                bodies.add(new String(delivery.getBody(), StandardCharsets.UTF_8) + " " + id + " " + number);
            }, tag -> { });
            for (int i = 0; i < 200; i++) {
                checkEqual(bodies.poll(10, TimeUnit.SECONDS), "body " + i + " m" + i + " " + i);
            }
        });
    }

    private void largeAndEmptyBodies() throws Exception {
        withChannel(channel -> {
            String queue = channel.queueDeclare("", false, true, false, null).getQueue();
            channel.confirmSelect();
            for (int size : new int[] {0, 1, 16384, 131064, 131065, 3000000}) {
                byte[] body = new byte[size];
                Arrays.fill(body, (byte) (size % 251));
                channel.basicPublish("", queue, null, body);
                channel.waitForConfirmsOrDie(10000);
                check(Arrays.equals(getWhenThere(channel, queue).getBody(), body), size + " octets");
            }
        });
    }

    private void quorumQueueCountsDeliveries() throws Exception {
        withChannel(channel -> {
            String queue = newName();
            channel.queueDeclare(queue, true, false, false, Map.of("x-queue-type", "quorum", "x-delivery-limit", 2));
            channel.confirmSelect();
            channel.basicPublish("", queue, new AMQP.BasicProperties.Builder().headers(Map.of("a", 1)).build(), bytes("x"));
            channel.waitForConfirmsOrDie(10000);
            for (long count = 0; count < 3; count++) {
                GetResponse message = getWhenThere(channel, queue);
                checkEqual(message.getProps().getHeaders().getOrDefault("x-delivery-count", 0L), count);
                channel.basicNack(message.getEnvelope().getDeliveryTag(), false, true);
            }
            check(channel.basicGet(queue, true) == null, "still there after three returns");
            channel.queueDelete(queue);
        });
    }

    private void streamIsReadFromAnOffset() throws Exception {
        withChannel(publisher -> {
            String queue = newName();
            publisher.queueDeclare(queue, true, false, false, Map.of("x-queue-type", "stream"));
            publisher.confirmSelect();
            for (int i = 0; i < 50; i++) {
                publisher.basicPublish("", queue, null, bytes(String.valueOf(i)));
            }
            publisher.waitForConfirmsOrDie(10000);
            for (int times = 0; times < 2; times++) {
                try (Channel channel = publisher.getConnection().createChannel()) {
                    channel.basicQos(7);
                    BlockingQueue<Long> offsets = new LinkedBlockingQueue<>();
                    channel.basicConsume(queue, false, Map.of("x-stream-offset", 20), (tag, message) -> {
                        long offset = (Long) message.getProperties().getHeaders().get("x-stream-offset");
                        channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
                        offsets.add(new String(message.getBody()).equals(String.valueOf(offset)) ? offset : -1);
                    }, tag -> { });
                    for (long offset = 20; offset < 50; offset++) {
                        checkEqual(offsets.poll(10, TimeUnit.SECONDS), offset);
                    }
                }
            }
            publisher.queueDelete(queue);
        });
    }

    private void settingsBelowTheOffer() throws Exception {
        ConnectionFactory factory = factory();
        factory.setRequestedFrameMax(8192);
        factory.setRequestedChannelMax(2);
        factory.setRequestedHeartbeat(7);
        try (Connection connection = factory.newConnection(newName())) {
            checkEqual(List.of(connection.getFrameMax(), connection.getChannelMax(), connection.getHeartbeat()), List.of(8192, 2, 7));
            Channel channel = connection.createChannel();
            String queue = channel.queueDeclare("", false, true, false, null).getQueue();
            channel.confirmSelect();
            channel.basicPublish("", queue, null, new byte[50000]);
            channel.waitForConfirmsOrDie(10000);
            checkEqual(getWhenThere(channel, queue).getBody().length, 50000);
            connection.createChannel();
            check(connection.createChannel() == null, "a third channel");
        }
    }

    private void channelsInThreads() throws Exception {
        try (Connection connection = factory().newConnection()) {
            ExecutorService threads = Executors.newFixedThreadPool(8);
            List<Future<?>> running = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                running.add(threads.submit(() -> {
                    Channel channel = connection.createChannel();
                    String queue = channel.queueDeclare("", false, true, false, null).getQueue();
                    channel.confirmSelect();
                    for (int j = 0; j < 100; j++) {
                        channel.basicPublish("", queue, null, new byte[1000]);
                    }
                    channel.waitForConfirmsOrDie(10000);
                    checkEqual(channel.queuePurge(queue).getMessageCount(), 100);
                    return null;
                }));
            }
            for (Future<?> each : running) {
                each.get();
            }
            threads.shutdown();
        }
    }

    private void mandatoryIsReturnedBeforeItsConfirm() throws Exception {
        withChannel(channel -> {
            BlockingQueue<String> events = new LinkedBlockingQueue<>();
            channel.addReturnListener(returned -> events.add(returned.getReplyCode() + " " + returned.getReplyText()));
            channel.addConfirmListener((tag, multiple) -> events.add("confirmed"), (tag, multiple) -> events.add("nacked"));
            channel.confirmSelect();
            channel.basicPublish("", newName(), true, null, bytes("lost"));
            checkEqual(events.poll(10, TimeUnit.SECONDS), "312 NO_ROUTE");
            checkEqual(events.poll(10, TimeUnit.SECONDS), "confirmed");
        });
    }

    private void nackRequeuesAndRejects() throws Exception {
        withChannel(channel -> {
            String queue = channel.queueDeclare("", false, true, false, null).getQueue();
            channel.basicPublish("", queue, null, bytes("x"));
            GetResponse first = getWhenThere(channel, queue);
            check(!first.getEnvelope().isRedeliver(), "redelivered at once");
            channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
            GetResponse second = getWhenThere(channel, queue);
            check(second.getEnvelope().isRedeliver(), "not redelivered");
            channel.basicReject(second.getEnvelope().getDeliveryTag(), false);
            check(channel.basicGet(queue, true) == null, "still there");
        });
    }

    private void channelErrorLeavesTheConnection() throws Exception {
        try (Connection connection = factory().newConnection()) {
            Channel channel = connection.createChannel();
            checkReply(closed(() -> channel.queueDeclarePassive(newName())), 404, "NOT_FOUND - no queue");
            connection.createChannel().exchangeDeclare(newName(), BuiltinExchangeType.TOPIC, false, true, null);
        }
    }

    private void connectionError() throws Exception {
        Connection connection = factory().newConnection();
        CompletableFuture<ShutdownSignalException> ended = new CompletableFuture<>();
        connection.addShutdownListener(ended::complete);
        connection.createChannel().basicPublish("", newName(), false, true, null, bytes("x"));
        ShutdownSignalException close = ended.get(10, TimeUnit.SECONDS);
        checkReply(close, 540, "NOT_IMPLEMENTED - immediate=true");
        check(close.isHardError() && !close.isInitiatedByApplication(), close);
    }

    private void wrongPassword() throws Exception {
        ConnectionFactory factory = factory();
        factory.setPassword("wrong");
        try (Connection connection = factory.newConnection()) {
            throw new AssertionError("let in: " + connection);
        } catch (AuthenticationFailureException refused) {
            check(refused.getMessage().contains("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"), refused);
        }
    }

    private void unknownVhost() throws Exception {
        ConnectionFactory factory = factory();
        factory.setVirtualHost("nowhere");
        checkReply(closed(() -> factory.newConnection().close()), 530, "NOT_ALLOWED - vhost nowhere not found");
    }

    private void closesAtOnce() throws Exception {
        Connection connection = factory().newConnection();
        connection.createChannel();
        long began = System.nanoTime();
        connection.close();
        long tookMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
        check(tookMs < 3000, "close took " + tookMs + " ms");
    }

    private void connectsAgainAndAgain() throws Exception {
        for (int i = 0; i < 5; i++) {
            withChannel(channel -> checkEqual(channel.queueDeclare().getConsumerCount(), 0));
        }
    }

    /** After a cut the client comes back by itself, declares its queue again and consumes from it; one at a time is cut. */
    private void recovers() throws Exception {
        synchronized (Cases.class) {
            recoverFromACut();
        }
    }

    private void recoverFromACut() throws Exception {
        ConnectionFactory factory = mode.factory(cutUrl, null, null);
        factory.setAutomaticRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(100);
        try (Connection connection = factory.newConnection()) {
            CountDownLatch recovered = new CountDownLatch(1);
            ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
                @Override
                public void handleRecovery(Recoverable recoverable) {
                    recovered.countDown();
                }

                @Override
                public void handleRecoveryStarted(Recoverable recoverable) { }
            });
            Channel channel = connection.createChannel();
            String queue = channel.queueDeclare(newName(), false, true, true, null).getQueue();
            BlockingQueue<String> bodies = new LinkedBlockingQueue<>();
            channel.basicConsume(queue, true, (tag, delivery) -> bodies.add(new String(delivery.getBody(), StandardCharsets.UTF_8)),
                    tag -> { });
            System.out.println("cut me");
            check(recovered.await(20, TimeUnit.SECONDS), "not recovered");
            channel.basicPublish("", queue, null, bytes("after"));
            checkEqual(bodies.poll(10, TimeUnit.SECONDS), "after");
        }
    }

    /** Who does not speak what the port speaks is turned away, and does not hang. */
    private void turnedAway(String to, String speaks) throws Exception {
        ConnectionFactory factory = mode.factory(to, speaks, authority);
        factory.setHandshakeTimeout(5000);
        try (Connection connection = factory.newConnection()) {
            throw new AssertionError("let in: " + connection);
        } catch (java.io.IOException | java.util.concurrent.TimeoutException expected) {
            return;
        }
    }

    /** The connection must still be there, and of use, `IDLE_S` seconds after it was opened with a heartbeat of two. */
    private void idleWithHeartbeats() throws Exception {
        ConnectionFactory factory = factory();
        factory.setRequestedHeartbeat(2);
        Connection connection = factory.newConnection();
        CompletableFuture<ShutdownSignalException> ended = new CompletableFuture<>();
        connection.addShutdownListener(ended::complete);
        try {
            ShutdownSignalException lost = ended.get(IDLE_S, TimeUnit.SECONDS);
            throw new AssertionError("lost: " + lost + ", caused by " + lost.getCause());
        } catch (java.util.concurrent.TimeoutException stillThere) {
            connection.createChannel().queueDeclare();
            connection.close();
        }
    }

    private static String runCase(Work work) {
        CompletableFuture<String> outcome = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                work.run();
                outcome.complete("ok");
            } catch (Throwable error) {
                String cause = error.getCause() == null ? "" : ", caused by " + error.getCause();
                outcome.complete(error + cause);
            }
        });
        thread.setDaemon(true);
        thread.start();
        try {
            return outcome.get(CASE_TIMEOUT_S, TimeUnit.SECONDS);
        } catch (java.util.concurrent.TimeoutException late) {
            return "not done within " + CASE_TIMEOUT_S + " s";
        } catch (InterruptedException | ExecutionException error) {
            return error.toString();
        }
    }

    private void run(Json verdict, String plainUrl) {
        String name = mode.name().toLowerCase() + (tls == null ? "" : " " + tls);
        ExecutorService beside = Executors.newSingleThreadExecutor();
        CompletableFuture<String> idle = CompletableFuture.supplyAsync(() -> runCase(this::idleWithHeartbeats), beside);
        verdict.add(name + " publish, confirm, consume", runCase(this::publishConfirmConsume));
        verdict.add(name + " large and empty bodies", runCase(this::largeAndEmptyBodies));
        verdict.add(name + " quorum queue counts deliveries", runCase(this::quorumQueueCountsDeliveries));
        verdict.add(name + " stream is read from an offset", runCase(this::streamIsReadFromAnOffset));
        verdict.add(name + " settings below the offer", runCase(this::settingsBelowTheOffer));
        verdict.add(name + " channels in threads", runCase(this::channelsInThreads));
        verdict.add(name + " mandatory is returned before its confirm", runCase(this::mandatoryIsReturnedBeforeItsConfirm));
        verdict.add(name + " nack requeues and rejects", runCase(this::nackRequeuesAndRejects));
        verdict.add(name + " channel error leaves the connection", runCase(this::channelErrorLeavesTheConnection));
        verdict.add(name + " connection error", runCase(this::connectionError));
        verdict.add(name + " wrong password", runCase(this::wrongPassword));
        verdict.add(name + " unknown vhost", runCase(this::unknownVhost));
        verdict.add(name + " closes at once", runCase(this::closesAtOnce));
        verdict.add(name + " connects again and again", runCase(this::connectsAgainAndAgain));
        if (tls == null) {
            verdict.add(name + " recovers", runCase(this::recovers));
        } else {
            verdict.add(name + " plain client on the TLS port", runCase(() -> turnedAway(url, null)));
            verdict.add(name + " TLS client on the plain port", runCase(() -> turnedAway(plainUrl, tls)));
        }
        verdict.add(name + " idle connection with heartbeats", idle.join());
        beside.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        prefix = arguments[1];
        boolean overTls = arguments.length > 3;
        String url = overTls ? arguments[3] : arguments[0];
        String authority = overTls ? arguments[4] : null;
        Json verdict = new Json();
        List<CompletableFuture<Void>> running = new ArrayList<>();
        ExecutorService threads = Executors.newCachedThreadPool();
        for (Mode mode : Mode.values()) {
            for (String version : overTls ? new String[] {"TLSv1.2", "TLSv1.3"} : new String[] {null}) {
                Cases cases = new Cases(mode, url, arguments[2], version, authority);
                running.add(CompletableFuture.runAsync(() -> cases.run(verdict, arguments[0]), threads));
            }
        }
        running.forEach(CompletableFuture::join);
        System.out.println(verdict);
        System.exit(verdict.all("ok") ? 0 : 1);
    }
}
