package org.apache.iceberg.data;

import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;

/** Commits rows, and deletes by value, by Iceberg's own writers, as Flink's upsert sink does. For `write_iceberg.py`. */
public class Upserts {
  /** rows: of all columns; keys: values of the columns `by`; partOf: a row whose partition the deletes have; everywhere: they have none. */
  public static void commit(
      Table table, List<List<Object>> rows, List<String> by, List<List<Object>> keys, List<Object> partOf, String format, boolean everywhere)
      throws IOException {
    FileFormat kind = FileFormat.fromString(format);
    int[] ids = by.stream().mapToInt(name -> table.schema().findField(name).fieldId()).toArray();
    Schema key = table.schema().select(by);
    GenericFileWriterFactory writers = new GenericFileWriterFactory.Builder(table)
        .dataSchema(table.schema()).dataFileFormat(kind).deleteFileFormat(kind).equalityFieldIds(ids).equalityDeleteRowSchema(key).build();
    OutputFileFactory files = OutputFileFactory.builderFor(table, 1, System.nanoTime()).format(kind).build();
    RowDelta delta = table.newRowDelta();
    Map<String, DataWriter<Record>> open = new LinkedHashMap<>();
    for (List<Object> row : rows) {
      Record record = record(table.schema().asStruct(), row);
      StructLike part = part(table, table.spec(), record);
      DataWriter<Record> writer = open.computeIfAbsent(String.valueOf(part), each -> writers.newDataWriter(
          part == null ? files.newOutputFile() : files.newOutputFile(table.spec(), part), table.spec(), part));
      writer.write(record);
    }
    for (DataWriter<Record> writer : open.values()) {
      writer.close();
      delta.addRows(writer.toDataFile());
    }
    if (!keys.isEmpty()) {
      PartitionSpec spec = everywhere ? PartitionSpec.unpartitioned() : table.spec();
      StructLike part = spec.isUnpartitioned() ? null : part(table, spec, record(table.schema().asStruct(), partOf));
      EqualityDeleteWriter<Record> writer =
          writers.newEqualityDeleteWriter(part == null ? files.newOutputFile() : files.newOutputFile(spec, part), spec, part);
      for (List<Object> values : keys) {
        writer.write(key(key, by, values));
      }
      writer.close();
      delta.addDeletes(writer.toDeleteFile());
    }
    delta.commit();
  }

  private static StructLike part(Table table, PartitionSpec spec, Record record) {
    if (spec.isUnpartitioned()) {
      return null;
    }
    PartitionKey key = new PartitionKey(spec, table.schema());
    key.partition(new InternalRecordWrapper(table.schema().asStruct()).wrap(record));
    return key;
  }

  private static Record record(Types.StructType type, List<?> values) {
    GenericRecord made = GenericRecord.create(type);
    for (int at = 0; at < values.size(); at++) {
      made.set(at, value(type.fields().get(at).type(), values.get(at)));
    }
    return made;
  }

  private static Record key(Schema schema, List<String> names, List<?> values) {
    GenericRecord made = GenericRecord.create(schema);
    for (int at = 0; at < values.size(); at++) {
      String name = names.get(at).split("\\.")[0];
      made.setField(name, value(schema.findField(name).type(), values.get(at)));
    }
    return made;
  }

  private static Object value(Type type, Object told) {
    if (told instanceof Number number && type.typeId() == Type.TypeID.LONG) {
      return number.longValue();
    }
    return told instanceof List<?> values && type.isStructType() ? record(type.asStructType(), values) : told;
  }
}
