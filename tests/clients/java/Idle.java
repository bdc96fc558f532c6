import com.rabbitmq.client.BlockedListener;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Holds connections with heartbeats; idle_clients.py says what the arguments are and what is printed. */
public class Idle {
    private static final byte[] BODY = new byte[100];
    private static volatile boolean ending;

    private final String name;
    private final String role;
    private final Connection connection;
    private final long opened = System.nanoTime();
    private volatile String lost;
    private volatile boolean blocked;
    private volatile long moved;

    private Idle(String argument) throws Exception {
        String[] parts = argument.split(",", 5);
        name = parts[0];
        role = parts[3];
        ConnectionFactory factory = Mode.valueOf(parts[1].toUpperCase()).factory(parts[4], null, null);
        factory.setRequestedHeartbeat(Integer.parseInt(parts[2]));
        connection = factory.newConnection(name);
        connection.addShutdownListener(this::ended);
        connection.addBlockedListener(new BlockedListener() {
            @Override
            public void handleBlocked(String reason) {
                blocked = true;
            }

            @Override
            public void handleUnblocked() {
                blocked = false;
            }
        });
        Channel channel = connection.createChannel();
        switch (role) {
            case "publisher":
                new Thread(() -> publish(channel)).start();
                break;
            case "consumer":
                channel.queueDeclare(name, false, false, true, Map.of("x-max-length", 1000));
                channel.basicConsume(name, true, (tag, delivery) -> moved++, tag -> { });
                break;
            case "blocked":
                channel.basicPublish("", name, null, BODY);
                moved++;
                break;
            default:
        }
    }

    private void ended(ShutdownSignalException cause) {
        if (!ending) {
            double seconds = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - opened) / 1000.0;
            lost = "lost after " + seconds + " s: " + cause.getMessage() + ", caused by " + cause.getCause();
        }
    }

    private void publish(Channel channel) {
        try {
            while (!ending) {
                channel.basicPublish("", name, null, BODY);
                moved++;
            }
        } catch (IOException | ShutdownSignalException error) {
            // the shutdown listener tells
        }
    }

    private String end() {
        if (lost != null) {
            return lost;
        }
        try {
            if (role.equals("blocked")) {
                return blocked ? "ok" : "not told that it is blocked";
            }
            if (!role.equals("idle")) {
                return moved > 0 ? "ok" : "nothing published or consumed";
            }
            connection.createChannel().queueDeclare();
            return "ok";
        } catch (IOException | ShutdownSignalException error) {
            return "of no use at the end: " + error + ", caused by " + error.getCause();
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Idle> held = new ArrayList<>();
        for (String argument : arguments) {
            held.add(new Idle(argument));
        }
        System.out.println("ready");
        System.in.read();
        Json verdict = new Json();
        for (Idle each : held) {
            verdict.add(each.name, each.end());
        }
        ending = true;
        System.out.println(verdict);
        System.exit(0);
    }
}
