import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import io.netty.channel.Channel;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Two servers that speak MongoDB's protocol over memory: one that stands alone, and one that is a replica set of one, with transactions.
 * Prints their ports, and ends when its input does. */
public class Servers {
  private static final int WIRE_VERSION = 21; // of 7.0: the drivers of today refuse the server's own
  // As MongoDB's transactionLifetimeLimitSeconds: of a client that was killed nobody ends a transaction.
  private static final Duration TRANSACTION_LIFETIME = Duration.ofSeconds(60);

  public static void main(String[] arguments) throws Exception {
    var alone = new MongoServer(new Backend(false));
    var set = new MongoServer(new Backend(true));
    System.out.println(alone.bind().getPort() + " " + set.bind().getPort());
    while (System.in.read() >= 0) {}
    alone.shutdownNow();
    set.shutdownNow();
  }

  /** One transaction: a copy of each collection that it has touched, which takes the place of the collection at the commit. */
  private static final class Transaction {
    final MemoryBackend copy = new MemoryBackend();
    final Map<String, Integer> seen = new HashMap<>();
    final Set<String> written = new HashSet<>();
    final Instant ends = Instant.now().plus(TRANSACTION_LIFETIME);
  }

  private static final class Backend extends MemoryBackend {
    private static final Set<String> READS = Set.of("find", "aggregate", "getMore", "count", "distinct");
    private final boolean transactions;
    private final Map<Object, Transaction> open = new HashMap<>();
    private final Map<String, Integer> versions = new HashMap<>();

    Backend(boolean transactions) {
      this.transactions = transactions;
      version(
          new MongoVersion() {
            @Override
            public List<Integer> getVersionArray() {
              return List.of(7, 0, 0);
            }

            @Override
            public int getWireVersion() {
              return WIRE_VERSION;
            }
          });
    }

    @Override
    public synchronized Document handleMessage(MongoMessage message) {
      Document asked = message.getDocument();
      String command = asked.keySet().iterator().next();
      if (Boolean.FALSE.equals(asked.get("autocommit"))) {
        return inTransaction(message, asked, command);
      }
      if (!READS.contains(command) && asked.get(command) instanceof String name) {
        versions.merge(asked.get("$db") + "." + name, 1, Integer::sum);
      }
      return super.handleMessage(message);
    }

    @Override
    public Document handleCommand(Channel channel, String database, String command, Document asked) {
      Document answer = super.handleCommand(channel, database, command, asked);
      if (transactions && command.equalsIgnoreCase("ismaster")) {
        String here = channel.localAddress().toString().replaceFirst("^.*/", "");
        answer.append("setName", "set").append("setVersion", 1).append("ismaster", true).append("secondary", false);
        answer.append("hosts", List.of(here)).append("me", here).append("primary", here);
        answer.append("logicalSessionTimeoutMinutes", 30);
      }
      return answer;
    }

    private Document inTransaction(MongoMessage message, Document asked, String command) {
      Object session = ((Document) asked.get("lsid")).get("id");
      open.values().removeIf(each -> Instant.now().isAfter(each.ends));
      if (Boolean.TRUE.equals(asked.get("startTransaction"))) {
        open.put(session, new Transaction());
      }
      Transaction mine = open.get(session);
      if (mine == null) {
        return command.equals("abortTransaction") ? done() : refused(251, "NoSuchTransaction", "no such transaction");
      }
      if (command.equals("abortTransaction")) {
        open.remove(session);
        return done();
      }
      if (command.equals("commitTransaction")) {
        open.remove(session);
        mine.written.forEach(place -> put(message, place, mine));
        return done();
      }
      String place = asked.get("$db") + "." + asked.get(command);
      if (mine.seen.putIfAbsent(place, versions.getOrDefault(place, 0)) == null) {
        copy(message, place, this, mine.copy, true);
      }
      if (!READS.contains(command)) {
        boolean taken = open.values().stream().anyMatch(other -> other != mine && other.written.contains(place));
        if (taken || !mine.seen.get(place).equals(versions.getOrDefault(place, 0))) {
          open.remove(session);
          return refused(112, "WriteConflict", "another transaction has written " + place);
        }
        mine.written.add(place);
      }
      for (String option : List.of("autocommit", "txnNumber", "startTransaction", "lsid", "readConcern")) {
        asked.remove(option);
      }
      return mine.copy.handleMessage(message);
    }

    private void put(MongoMessage message, String place, Transaction done) {
      versions.merge(place, 1, Integer::sum);
      ask(message, this, place, "delete", "deletes", List.of(new Document("q", new Document()).append("limit", 0)));
      copy(message, place, done.copy, this, false);
    }

    private void copy(MongoMessage message, String place, MemoryBackend from, MemoryBackend to, boolean indexed) {
      if (indexed) {
        Document indexes = ask(message, from, place, "listIndexes", "cursor", new Document());
        if (indexes.get("cursor") instanceof Document cursor) {
          ask(message, to, place, "createIndexes", "indexes", new ArrayList<>((List<?>) cursor.get("firstBatch")));
        }
      }
      Document found = ask(message, from, place, "find", "batchSize", Integer.MAX_VALUE);
      List<?> documents = (List<?>) ((Document) found.get("cursor")).get("firstBatch");
      if (!documents.isEmpty()) {
        // The backend hands out the documents themselves, and changes them in place.
        List<Document> own = new ArrayList<>();
        documents.forEach(each -> own.add(((Document) each).cloneDeeply()));
        ask(message, to, place, "insert", "documents", own);
      }
    }

    private Document ask(MongoMessage message, MemoryBackend whom, String place, String command, String what, Object value) {
      int dot = place.indexOf('.');
      Document asked = new Document(command, place.substring(dot + 1)).append(what, value).append("$db", place.substring(0, dot));
      MongoMessage own = new MongoMessage(message.getChannel(), message.getHeader(), asked);
      return whom == this ? super.handleMessage(own) : whom.handleMessage(own);
    }

    private static Document done() {
      return new Document("ok", 1.0);
    }

    private static Document refused(int code, String name, String why) {
      Document answer = new Document("ok", 0.0).append("errmsg", why).append("code", code).append("codeName", name);
      return answer.append("errorLabels", List.of("TransientTransactionError"));
    }
  }
}
