import com.rabbitmq.client.ConnectionFactory;
import io.netty.handler.ssl.SslContextBuilder;
import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.HashMap;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The client's three ways to read and write a socket, each with or without TLS. */
enum Mode {
    BLOCKING,
    NIO,
    NETTY;

    /** One context for all connections of a version, as in a real program: the second may take up the first one's session. */
    private static final Map<String, SSLContext> CONTEXTS = new HashMap<>();

    /** `tls` is a version such as "TLSv1.3", or null; `authority` is the PEM file whose server certificates are trusted. */
    ConnectionFactory factory(String url, String tls, String authority) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(url);
        factory.setAutomaticRecoveryEnabled(false);
        factory.setConnectionTimeout(5000);
        factory.setChannelRpcTimeout(10000);
        if (this == NIO) {
            factory.useNio();
        }
        if (this == NETTY) {
            ConnectionFactory.NettyConfiguration netty = factory.netty();
            if (tls != null) {
                netty.sslContext(SslContextBuilder.forClient().trustManager(Path.of(authority).toFile()).protocols(tls)
                        .endpointIdentificationAlgorithm("HTTPS").build());
            }
        } else if (tls != null) {
            factory.useSslProtocol(context(tls, authority));
            factory.enableHostnameVerification();
        }
        return factory;
    }

    private static synchronized SSLContext context(String version, String authority) throws Exception {
        SSLContext known = CONTEXTS.get(version);
        if (known != null) {
            return known;
        }
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream file = new FileInputStream(authority)) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance(version);
        context.init(null, trust.getTrustManagers(), null);
        CONTEXTS.put(version, context);
        return context;
    }
}
