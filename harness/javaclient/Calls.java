import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;

/** Methods of the client's objects that need no arguments: isConnected, flush, close... */
final class Calls {
    private Calls() {}

    static Object method(Main program, JsonNode asked) throws Exception {
        Object object = program.object(asked);
        String name = asked.get("op").textValue();
        Method method = find(object.getClass(), name);
        if (method == null) {
            throw new NoSuchMethodException(object.getClass().getSimpleName() + "." + name);
        }
        try {
            return Values.told(method.invoke(object));
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw error;
        } finally {
            if (name.equals("close")) {
                program.forget(asked);
            }
        }
    }

    /** A method as an interface of Pulsar's API has it, for the classes are not public. */
    private static Method find(Class<?> type, String name) {
        for (Class<?> each = type; each != null; each = each.getSuperclass()) {
            for (Class<?> face : each.getInterfaces()) {
                try {
                    return face.getMethod(name);
                } catch (NoSuchMethodException error) {
                    continue; // the next one may have it
                }
            }
        }
        return null;
    }
}
