import java.util.List;
import java.util.Map;

/** Classes whose objects are sent. */
final class Types {
    private Types() {}

    public static class User {
        public String name;
        public int age;
    }

    /** What User became: a field more, which readers of older messages find empty. */
    public static class UserWithMail {
        public String name;
        public int age;
        public String mail;
    }

    /** What User cannot become: an age that is a text. */
    public static class UserOfWords {
        public String name;
        public String age;
    }

    /** A record with everything that may be in one. */
    public static class Everything {
        public boolean truth;
        public long number;
        public double fraction;
        public byte[] bytes;
        public Color color;
        public List<String> names;
        public Map<String, Integer> counts;
        public User user;
    }

    public enum Color {
        RED,
        GREEN
    }
}
