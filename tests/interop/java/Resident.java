import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the main methods of tools and programs one after the other in this one machine, each with standard streams of its
 * own: most of what a tool costs is the start of a machine. Reads requests from standard input and answers each on
 * standard output; numbers are four bytes, texts and bytes come behind their length.
 *
 * <p>request: number of words, the words (class and arguments), standard input · answer: exit code, output, errors
 */
public final class Resident {
    /** What a tool that ends the process throws instead. */
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static Integer code;
    private static final List<Runnable> HOOKS = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out));
        Exit.setExitProcedure((exit, message) -> end(exit, message));
        Exit.setHaltProcedure((exit, message) -> end(exit, message));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        while (true) {
            String[] words;
            try {
                words = new String[in.readInt()];
            } catch (EOFException e) {
                return;
            }
            for (int i = 0; i < words.length; i++) {
                words[i] = new String(bytes(in), StandardCharsets.UTF_8);
            }
            InputStream input = new ByteArrayInputStream(bytes(in));
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            int exit = run(words, input, printed, errors);
            out.writeInt(exit);
            for (ByteArrayOutputStream stream : List.of(printed, errors)) {
                out.writeInt(stream.size());
                stream.writeTo(out);
            }
            out.flush();
        }
    }

    private static byte[] bytes(DataInputStream in) throws Exception {
        byte[] bytes = new byte[in.readInt()];
        in.readFully(bytes);
        return bytes;
    }

    /** The first code counts: what a tool catches of its own end it takes for a failure. */
    private static synchronized void end(int exit, String message) {
        if (code == null) {
            code = exit;
            if (message != null) {
                System.err.println(message);
            }
        }
        throw new Ended();
    }

    private static int run(String[] words, InputStream input, ByteArrayOutputStream printed, ByteArrayOutputStream errors) {
        code = null;
        System.setIn(input);
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
        String[] args = new String[words.length - 1];
        System.arraycopy(words, 1, args, 0, args.length);
        boolean failed = false;
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Ended)) {
                e.getCause().printStackTrace();
                failed = true;
            }
        } catch (ReflectiveOperationException e) {
            e.printStackTrace();
            failed = true;
        }
        for (Runnable hook : HOOKS) {
            hook.run();
        }
        HOOKS.clear();
        System.out.flush();
        System.err.flush();
        return code != null ? code : failed ? 1 : 0;
    }
}
