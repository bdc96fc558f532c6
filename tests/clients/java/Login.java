import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultSaslConfig;
import com.rabbitmq.client.impl.CredentialsProvider;
import com.rabbitmq.client.impl.CredentialsRefreshService;
import java.io.FileInputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.concurrent.Callable;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Logs in otherwise than by a password. `external URL AUTHORITY KEYSTORE`: by the certificate in a PKCS 12 file, whose password is
 * "secret", at a broker that the authority's PEM file vouches for. `token URL FIRST SECOND`: by a token, and then hands in another.
 * A queue is declared each time; "ok" is printed at the end.
 */
public class Login {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[1]);
        Tokens tokens = new Tokens(arguments[2], arguments[3]);
        if (arguments[0].equals("external")) {
            factory.useSslProtocol(context(arguments[2], arguments[3]));
            factory.setSaslConfig(DefaultSaslConfig.EXTERNAL);
        } else {
            factory.setCredentialsProvider(tokens);
            factory.setCredentialsRefreshService(tokens);
        }
        try (Connection connection = factory.newConnection()) {
            connection.createChannel().queueDeclare();
            if (tokens.update != null) {
                tokens.refresh();
                tokens.update.call();
                connection.createChannel().queueDeclare();
            }
        }
        System.out.println("ok");
    }

    /** Two tokens, one after the other; `update` is how the client hands in the second. */
    private static class Tokens implements CredentialsProvider, CredentialsRefreshService {
        private String token;
        private final String next;
        private Callable<Boolean> update;

        Tokens(String token, String next) {
            this.token = token;
            this.next = next;
        }

        @Override
        public String getUsername() {
            return "";
        }

        @Override
        public String getPassword() {
            return token;
        }

        @Override
        public Duration getTimeBeforeExpiration() {
            return Duration.ofMinutes(1);
        }

        @Override
        public void refresh() {
            token = next;
        }

        @Override
        public String register(CredentialsProvider provider, Callable<Boolean> refreshAction) {
            update = refreshAction;
            return "registered";
        }

        @Override
        public void unregister(CredentialsProvider provider, String registration) {}

        @Override
        public boolean isApproachingExpiration(Duration left) {
            return false;
        }
    }

    private static SSLContext context(String authority, String file) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (FileInputStream in = new FileInputStream(authority)) {
            trusted.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(in));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyStore own = KeyStore.getInstance("PKCS12");
        try (FileInputStream in = new FileInputStream(file)) {
            own.load(in, "secret".toCharArray());
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, "secret".toCharArray());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }
}
