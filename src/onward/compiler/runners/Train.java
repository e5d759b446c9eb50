// Train a program that Onward compiled, with ONNX Runtime's Java API (com.microsoft.onnxruntime 1.17 or newer). Java 17.
//
//   java -cp onnxruntime.jar Train.java PROGRAM BATCHES.safetensors OUT [STATE.safetensors]
//
// BATCHES holds one tensor per input and batch, named "<batch>/<input>". Without STATE, training starts from the state
// of the program. Prints the loss of each step and, last, that of the last batch in inference mode. Writes to the
// folder OUT: state.safetensors (to go on with, here or in Python), outputs.safetensors (what the model says about the
// last batch) and model.onnx (the inference model with the trained weights).

import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

class Train {
  /** An element type: its names in safetensors files and in the manifest, its number in ONNX, and its size. */
  enum Kind {
    F32("float32", OnnxJavaType.FLOAT, 1, 4), F64("float64", OnnxJavaType.DOUBLE, 11, 8),
    F16("float16", OnnxJavaType.FLOAT16, 10, 2), BF16("bfloat16", OnnxJavaType.BFLOAT16, 16, 2),
    I64("int64", OnnxJavaType.INT64, 7, 8), I32("int32", OnnxJavaType.INT32, 6, 4),
    I16("int16", OnnxJavaType.INT16, 5, 2), I8("int8", OnnxJavaType.INT8, 3, 1),
    U8("uint8", OnnxJavaType.UINT8, 2, 1), BOOL("bool", OnnxJavaType.BOOL, 9, 1);

    final String numpy;
    final OnnxJavaType type;
    final int onnx, size;

    Kind(String numpy, OnnxJavaType type, int onnx, int size) {
      this.numpy = numpy;
      this.type = type;
      this.onnx = onnx;
      this.size = size;
    }

    static Kind named(String name) {
      for (Kind kind : values()) if (kind.name().equals(name) || kind.numpy.equals(name)) return kind;
      throw new IllegalArgumentException("an element type that this file does not know: " + name);
    }

    static Kind of(OnnxTensor tensor) {
      for (Kind kind : values()) if (kind.type == tensor.getInfo().type) return kind;
      throw new IllegalArgumentException("an element type that this file does not know: " + tensor.getInfo().type);
    }
  }

  // -------------------------------------------------------------- JSON

  /** Reads objects as maps in their order, arrays as lists, numbers as Long or Double. */
  static final class Json {
    private final String text;
    private int at;

    private Json(String text) {
      this.text = text;
    }

    static Map<String, Object> parse(String text) {
      return map(new Json(text).value());
    }

    private char next() {
      while (at < text.length() && Character.isWhitespace(text.charAt(at))) at++;
      if (at == text.length()) throw new IllegalArgumentException("JSON that ends too early");
      return text.charAt(at);
    }

    private boolean took(char sign) {
      if (next() != sign) return false;
      at++;
      return true;
    }

    private Object value() {
      if (took('{')) {
        Map<String, Object> found = new LinkedHashMap<>();
        while (!took('}')) {
          String name = string();
          if (!took(':')) throw new IllegalArgumentException("JSON without a colon at " + at);
          found.put(name, value());
          took(',');
        }
        return found;
      }
      if (took('[')) {
        List<Object> found = new ArrayList<>();
        while (!took(']')) {
          found.add(value());
          took(',');
        }
        return found;
      }
      if (next() == '"') return string();
      int start = at;
      while (at < text.length() && ",]} \n\r\t".indexOf(text.charAt(at)) < 0) at++;
      String word = text.substring(start, at);
      return switch (word) {
        case "true" -> true;
        case "false" -> false;
        case "null" -> "";
        default -> word.matches("-?[0-9]+") ? (Object) Long.valueOf(word) : Double.valueOf(word);
      };
    }

    private String string() {
      if (!took('"')) throw new IllegalArgumentException("JSON without a name at " + at);
      StringBuilder found = new StringBuilder();
      for (; text.charAt(at) != '"'; at++) {
        char sign = text.charAt(at);
        if (sign == '\\') {
          sign = text.charAt(++at);
          int place = "bfnrt".indexOf(sign);
          if (place >= 0) sign = "\b\f\n\r\t".charAt(place);
          if (text.charAt(at) == 'u') {
            sign = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
            at += 4;
          }
        }
        found.append(sign);
      }
      at++;
      return found.toString();
    }

    static String quoted(String name) {
      StringBuilder found = new StringBuilder("\"");
      for (char sign : name.toCharArray()) {
        if (sign == '"' || sign == '\\') found.append('\\').append(sign);
        else if (sign < ' ') found.append(String.format("\\u%04x", (int) sign));
        else found.append(sign);
      }
      return found.append('"').toString();
    }
  }

  @SuppressWarnings("unchecked")
  static Map<String, Object> map(Object json) {
    return (Map<String, Object>) json;
  }

  static List<?> list(Object json) {
    return (List<?>) json;
  }

  // -------------------------------------------------------------- tensors and files

  static byte[] read(Path path) throws IOException {
    try {
      return Files.readAllBytes(path);
    } catch (NoSuchFileException error) {
      throw new IOException("cannot read " + path);
    }
  }

  static OnnxTensor tensor(OrtEnvironment env, Kind kind, List<?> shape, ByteBuffer data) throws OrtException {
    long[] sizes = shape.stream().mapToLong(size -> (Long) size).toArray();
    ByteBuffer direct = ByteBuffer.allocateDirect(data.remaining()).order(ByteOrder.nativeOrder()).put(data);
    return OnnxTensor.createTensor(env, direct.rewind(), sizes, kind.type);
  }

  static byte[] bytes(OnnxTensor tensor) {
    ByteBuffer data = tensor.getByteBuffer();
    byte[] found = new byte[data.remaining()];
    data.get(found);
    return found;
  }

  static Map<String, OnnxTensor> readTensors(OrtEnvironment env, Path path) throws IOException, OrtException {
    ByteBuffer file = ByteBuffer.wrap(read(path)).order(ByteOrder.LITTLE_ENDIAN);
    long length = file.limit() < 8 ? -1 : file.getLong();
    if (length < 0 || length > file.remaining()) throw new IOException(path + " is not a safetensors file");
    int body = 8 + (int) length;
    Map<String, OnnxTensor> found = new TreeMap<>();
    for (var entry : Json.parse(new String(file.array(), 8, (int) length, StandardCharsets.UTF_8)).entrySet()) {
      if (entry.getKey().equals("__metadata__")) continue;
      Map<String, Object> about = map(entry.getValue());
      List<?> offsets = list(about.get("data_offsets")), shape = list(about.get("shape"));
      Kind kind = Kind.named((String) about.get("dtype"));
      long first = (Long) offsets.get(0), last = (Long) offsets.get(1), size = kind.size;
      for (Object n : shape) size *= (Long) n;
      if (first > last || last > file.limit() - body || last - first != size) throw new IOException(path + " is damaged");
      found.put(entry.getKey(), tensor(env, kind, shape, ByteBuffer.wrap(file.array(), body + (int) first, (int) size)));
    }
    return found;
  }

  static void writeTensors(Path path, Map<String, OnnxTensor> tensors) throws IOException {
    StringBuilder header = new StringBuilder("{");
    ByteArrayOutputStream body = new ByteArrayOutputStream();
    for (var entry : tensors.entrySet()) {
      int first = body.size();
      body.writeBytes(bytes(entry.getValue()));
      List<Long> shape = new ArrayList<>();
      for (long size : entry.getValue().getInfo().getShape()) shape.add(size);
      header.append(header.length() > 1 ? "," : "").append(Json.quoted(entry.getKey())).append(":{\"dtype\":\"")
          .append(Kind.of(entry.getValue())).append("\",\"shape\":").append(shape)
          .append(",\"data_offsets\":[").append(first).append(",").append(body.size()).append("]}");
    }
    byte[] text = header.append("}").toString().getBytes(StandardCharsets.UTF_8);
    int length = (text.length + 7) / 8 * 8;
    ByteBuffer file = ByteBuffer.allocate(8 + length + body.size()).order(ByteOrder.LITTLE_ENDIAN);
    file.putLong(length).put(text).put(" ".repeat(length - text.length).getBytes(StandardCharsets.US_ASCII));
    Files.write(path, file.put(body.toByteArray()).array());
  }

  static void fill(Object number, Kind kind, ByteBuffer to) {
    if (number instanceof List<?> items) for (Object item : items) fill(item, kind, to);
    else if (kind == Kind.BOOL) to.put((byte) ((Boolean) number ? 1 : 0));
    else if (kind == Kind.F32) to.putFloat(((Number) number).floatValue());
    else if (kind == Kind.F64) to.putDouble(((Number) number).doubleValue());
    else if (kind == Kind.I64) to.putLong(((Number) number).longValue());
    else if (kind == Kind.I32) to.putInt(((Number) number).intValue());
    else throw new IllegalArgumentException("a setting of element type " + kind.numpy);
  }

  static Map<String, OnnxTensor> readSettings(OrtEnvironment env, Map<String, Object> manifest) throws OrtException {
    Map<String, OnnxTensor> found = new TreeMap<>();
    for (var entry : map(manifest.get("settings")).entrySet()) {
      Map<String, Object> about = map(entry.getValue());
      Kind kind = Kind.named((String) about.get("dtype"));
      int size = kind.size;
      for (Object n : list(about.get("shape"))) size *= ((Long) n).intValue();
      ByteBuffer data = ByteBuffer.allocate(size).order(ByteOrder.nativeOrder());
      fill(about.get("default"), kind, data);
      found.put(entry.getKey(), tensor(env, kind, list(about.get("shape")), data.rewind()));
    }
    return found;
  }

  // -------------------------------------------------------------- graphs

  static final class Graph {
    final Map<String, Object> about; // what the manifest says
    final OrtSession session;

    Graph(OrtEnvironment env, Path folder, Object said) throws OrtException {
      about = map(said);
      OrtSession.SessionOptions options = new OrtSession.SessionOptions();
      options.setMemoryPatternOptimization(false); // 1.17 and 1.18 reuse memory that is still read
      session = env.createSession(folder.resolve((String) about.get("file")).toString(), options);
    }

    /** Run: new state goes to where `replaces` says, other outputs to `outputs`; return the loss. */
    float run(List<Map<String, OnnxTensor>> known, Map<String, OnnxTensor> state, Map<String, OnnxTensor> outputs)
        throws OrtException {
      Map<String, OnnxTensor> feeds = new TreeMap<>();
      for (Object input : list(about.get("inputs"))) {
        String name = (String) map(input).get("name");
        for (Map<String, OnnxTensor> source : known) if (source.containsKey(name)) feeds.putIfAbsent(name, source.get(name));
        if (state.containsKey(name)) feeds.putIfAbsent(name, state.get(name));
        if (!feeds.containsKey(name)) throw new IllegalArgumentException("no value for input " + name);
      }
      Map<String, OnnxTensor> results = new TreeMap<>();
      for (Map.Entry<String, OnnxValue> result : session.run(feeds)) results.put(result.getKey(), (OnnxTensor) result.getValue());
      float loss = 0;
      for (Object output : list(about.get("outputs"))) {
        Map<String, Object> said = map(output);
        OnnxTensor value = results.get((String) said.get("name"));
        if (said.get("role").equals("loss")) loss = ((Number) value.getValue()).floatValue();
        boolean isState = said.get("role").equals("state");
        OnnxTensor old = (isState ? state : outputs).put((String) said.get(isState ? "replaces" : "name"), value);
        if (old != null) old.close(); // its memory is not Java's
      }
      return loss;
    }
  }

  // -------------------------------------------------------------- the inference model with its weights

  static void putNumber(ByteArrayOutputStream to, long number) {
    for (; (number & ~0x7FL) != 0; number >>>= 7) to.write((int) (number & 0x7F | 0x80));
    to.write((int) number);
  }

  static void putField(ByteArrayOutputStream to, int field, byte[] data) {
    putNumber(to, (long) field << 3 | 2);
    putNumber(to, data.length);
    to.writeBytes(data);
  }

  record Field(int number, byte[] whole, ByteBuffer data) {} // with and without its tag and length

  static long takeNumber(ByteBuffer message) {
    long number = 0;
    for (int shift = 0; ; shift += 7) {
      byte next = message.get();
      number |= (next & 0x7FL) << shift;
      if (next >= 0) return number;
    }
  }

  /** Take the first field off a protobuf message. */
  static Field takeField(ByteBuffer message) {
    int start = message.position();
    long tag = takeNumber(message);
    int kind = (int) (tag & 7), size = 0;
    if (kind == 0) takeNumber(message);
    else size = kind == 1 ? 8 : kind == 5 ? 4 : (int) takeNumber(message);
    ByteBuffer data = message.slice(message.position(), size);
    message.position(message.position() + size);
    byte[] whole = new byte[message.position() - start];
    message.get(start, whole);
    return new Field((int) (tag >> 3), whole, data);
  }

  static String nameOf(ByteBuffer valueInfo) { // field 1 of a ValueInfoProto
    while (valueInfo.hasRemaining()) {
      Field field = takeField(valueInfo);
      if (field.number == 1) return StandardCharsets.UTF_8.decode(field.data).toString();
    }
    return "";
  }

  static byte[] exported(byte[] file, Map<String, Object> about, Map<String, OnnxTensor> state) {
    List<String> names = new ArrayList<>();
    for (Object input : list(about.get("inputs")))
      if (map(input).get("role").equals("state")) names.add((String) map(input).get("name"));
    ByteArrayOutputStream model = new ByteArrayOutputStream(), graph = new ByteArrayOutputStream();
    for (ByteBuffer rest = ByteBuffer.wrap(file); rest.hasRemaining(); ) {
      Field field = takeField(rest);
      if (field.number != 7) model.writeBytes(field.whole); // 7: the graph
      while (field.number == 7 && field.data.hasRemaining()) {
        Field inner = takeField(field.data);
        if (inner.number != 11 || !names.contains(nameOf(inner.data))) graph.writeBytes(inner.whole); // 11: an input
      }
    }
    for (String name : names) {
      ByteArrayOutputStream made = new ByteArrayOutputStream();
      for (long size : state.get(name).getInfo().getShape()) {
        putNumber(made, 1 << 3);
        putNumber(made, size);
      }
      putNumber(made, 2 << 3);
      putNumber(made, Kind.of(state.get(name)).onnx);
      putField(made, 8, name.getBytes(StandardCharsets.UTF_8));
      putField(made, 9, bytes(state.get(name)));
      putField(graph, 5, made.toByteArray()); // 5: an initializer
    }
    putField(model, 7, graph.toByteArray());
    return model.toByteArray();
  }

  // -------------------------------------------------------------- the loop

  static void train(Path folder, Path data, Path out, Path start) throws IOException, OrtException {
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    Map<String, Object> manifest = Json.parse(Files.readString(folder.resolve("manifest.json")));
    Map<String, Object> graphs = map(manifest.get("graphs"));
    Map<String, OnnxTensor> settings = readSettings(env, manifest);
    Path stored = folder.resolve((String) map(manifest.get("state")).get("file"));
    Map<String, OnnxTensor> state = readTensors(env, start == null ? stored : start);
    TreeMap<Integer, Map<String, OnnxTensor>> batches = new TreeMap<>();
    for (var entry : readTensors(env, data).entrySet()) {
      String[] parts = entry.getKey().split("/", 2);
      batches.computeIfAbsent(Integer.valueOf(parts[0]), n -> new TreeMap<>()).put(parts[1], entry.getValue());
    }
    if (batches.isEmpty()) throw new IOException(data + " holds no batch");

    List<Graph> steps = new ArrayList<>();
    for (var entry : graphs.entrySet())
      if (entry.getKey().split(":")[0].equals("step")) steps.add(new Graph(env, folder, entry.getValue()));
    Map<String, OnnxTensor> outputs = new TreeMap<>();
    for (var batch : batches.values())
      for (Graph step : steps) System.out.println(step.run(List.of(batch, settings), state, outputs));

    List<Map<String, OnnxTensor>> last = List.of(batches.lastEntry().getValue(), settings);
    Graph evaluate = new Graph(env, folder, graphs.get("evaluate")), infer = new Graph(env, folder, graphs.get("infer"));
    System.out.println(evaluate.run(last, state, outputs));
    outputs.clear();
    infer.run(last, state, outputs);

    writeTensors(out.resolve("outputs.safetensors"), outputs);
    writeTensors(out.resolve("state.safetensors"), state);
    byte[] file = read(folder.resolve((String) infer.about.get("file")));
    Files.write(out.resolve("model.onnx"), exported(file, infer.about, state));
  }

  public static void main(String[] given) {
    try {
      if (given.length < 3) throw new IOException("usage: Train.java PROGRAM BATCHES.safetensors OUT [STATE.safetensors]");
      train(Path.of(given[0]), Path.of(given[1]), Path.of(given[2]), given.length > 3 ? Path.of(given[3]) : null);
    } catch (IOException | OrtException | RuntimeException error) {
      System.err.println("error: " + error.getMessage());
      System.exit(1);
    }
  }
}
