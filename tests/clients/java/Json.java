import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A JSON object of texts, in the order in which they were added. */
class Json {
    private final Map<String, String> entries = new LinkedHashMap<>();

    synchronized void add(String key, String value) {
        entries.put(key, value);
    }

    boolean all(String value) {
        return entries.values().stream().allMatch(value::equals);
    }

    @Override
    public String toString() {
        List<String> written = new ArrayList<>();
        entries.forEach((key, value) -> written.add(quoted(key) + ": " + quoted(value)));
        return "{" + String.join(", ", written) + "}";
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                out.append('\\').append(letter);
            } else if (letter < ' ' || letter > '~') {
                out.append(String.format("\\u%04x", (int) letter));
            } else {
                out.append(letter);
            }
        }
        return out.append('"').toString();
    }
}
