//! rskafka as a producer and a reader, by the script that the Go clients read.
use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use rskafka::client::{ClientBuilder, partition::{Compression, UnknownTopicHandling}};
use rskafka::record::Record;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::BufRead;

#[derive(Deserialize)]
struct Setting {
    bootstrap: String,
    topic: String,
    #[serde(default)]
    codec: String,
    #[serde(default)]
    batch_records: usize,
    #[serde(default)]
    ends: Vec<i64>,
}

#[derive(Deserialize)]
struct Header {
    n: String,
    v: Option<String>,
}

#[derive(Deserialize)]
struct One {
    r#do: Option<String>,
    p: Option<i32>,
    t: Option<i64>,
    k: Option<String>,
    v: Option<String>,
    h: Option<Vec<Header>>,
}

fn raw(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap()
}

fn coded(data: Option<&Vec<u8>>) -> serde_json::Value {
    data.map(|d| BASE64_STANDARD.encode(d)).into()
}

#[tokio::main]
async fn main() {
    let mut lines = std::io::stdin().lock().lines();
    let said: Setting = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let client = ClientBuilder::new(vec![said.bootstrap.clone()]).build().await.unwrap();
    if std::env::args().nth(1).unwrap() == "consume" {
        for (partition, end) in said.ends.iter().enumerate() {
            let reading = client.partition_client(said.topic.clone(), partition as i32, UnknownTopicHandling::Retry).await.unwrap();
            let mut at = 0;
            while at < *end {
                let (records, _) = reading.fetch_records(at, 1..32_000_000, 1_000).await.unwrap();
                if records.is_empty() {
                    break;
                }
                for found in records {
                    at = found.offset + 1;
                    let headers: Vec<_> = found.record.headers.iter()
                        .map(|(n, v)| serde_json::json!({"n": BASE64_STANDARD.encode(n), "v": BASE64_STANDARD.encode(v)})).collect();
                    println!("{}", serde_json::json!({
                        "p": partition, "o": found.offset, "t": found.record.timestamp.timestamp_millis(),
                        "k": coded(found.record.key.as_ref()), "v": coded(found.record.value.as_ref()), "h": headers,
                    }));
                }
            }
        }
        return;
    }
    let codec = match said.codec.as_str() {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        _ => Compression::NoCompression,
    };
    let size = if said.batch_records > 0 { said.batch_records } else { 100 };
    let mut waiting: BTreeMap<i32, Vec<Record>> = BTreeMap::new();
    for line in lines {
        let one: One = serde_json::from_str(&line.unwrap()).unwrap();
        if one.r#do.is_some() {
            continue;
        }
        let time = one.t.and_then(DateTime::<Utc>::from_timestamp_millis).unwrap_or_else(Utc::now);
        let headers = one.h.unwrap_or_default().iter()
            .map(|h| (String::from_utf8(raw(&h.n)).unwrap(), h.v.as_deref().map(raw).unwrap_or_default())).collect();
        waiting.entry(one.p.unwrap()).or_default().push(Record {
            key: one.k.as_deref().map(raw), value: one.v.as_deref().map(raw), headers, timestamp: time,
        });
    }
    for (partition, records) in waiting {
        let writing = client.partition_client(said.topic.clone(), partition, UnknownTopicHandling::Retry).await.unwrap();
        for some in records.chunks(size) {
            writing.produce(some.to_vec(), codec).await.unwrap();
        }
    }
}
