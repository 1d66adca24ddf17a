//! Writes a first corpus for each target: samples of every message at every version, made from
//! the schemas, in the form in which the target takes its input.

#[path = "../../../src/wire/schema/mod.rs"]
#[allow(dead_code)]
mod schema;

use std::path::Path;

use highwater_wire::wire::batch_builder::BatchBuilder;
use highwater_wire::wire::codec::Codec;
use schema::model::{Kind, Message};
use schema::sample::Sampler;

fn put(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(name), bytes)
}

fn main() -> std::io::Result<()> {
    let messages = schema::load();
    for message in &messages {
        for version in message.versions.iter() {
            put_samples(&messages, message, version)?;
        }
    }
    put_batches()
}

fn put_samples(messages: &[Message], message: &Message, version: i16) -> std::io::Result<()> {
    let key = message.key.unwrap_or(-1);
    let body = Sampler::new(message, version, 1).sample();
    let name = format!("{}-{version}", message.name());
    let number = [key as u8, version as u8];
    match message.kind {
        Kind::Request => {
            put("any_request", &name, &[&number, &body[..]].concat())?;
            let head = [key.to_be_bytes(), version.to_be_bytes()].concat();
            let client = if message.is_flexible(version) {
                &b"\0\x01c\0"[..]
            } else {
                &b"\0\x01c"[..]
            };
            put(
                "request_header",
                &name,
                &[&head, &b"\0\0\0\x07"[..], client, &body].concat(),
            )
        }
        Kind::Response => put("any_response", &name, &[&number, &body[..]].concat()),
        Kind::Record => put(
            "metadata_record",
            &name,
            &[&[1, number[0], number[1]], &body[..]].concat(),
        ),
        Kind::Value => {
            let is_key = |m: &&Message| {
                m.kind == Kind::Key && m.key == message.key && m.family() == message.family()
            };
            let Some(of) = messages.iter().find(is_key) else {
                return Ok(());
            };
            let family = match message.family() {
                "group_records" => 0,
                "transaction_records" => 1,
                _ => 2,
            };
            let of = [&key.to_be_bytes()[..], &Sampler::new(of, 0, 1).sample()].concat();
            let value = [&version.to_be_bytes()[..], &body].concat();
            put(
                "coordinator_record",
                &name,
                &[&[family, of.len() as u8], &of[..], &value].concat(),
            )
        }
        Kind::Data => put(
            "coordinator_record",
            &name,
            &[&[3], &version.to_be_bytes()[..], &body].concat(),
        ),
        Kind::Key | Kind::Header => Ok(()),
    }
}

fn put_batches() -> std::io::Result<()> {
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new().with_codec(codec, None);
        for n in 0..4i64 {
            let headers = [(&b"k"[..], Some(&b"v"[..])), (&b"k"[..], None)];
            builder
                .append(n, Some(b"key"), Some(&[n as u8; 200]), &headers)
                .map_err(std::io::Error::other)?;
        }
        let batch = builder.build().map_err(std::io::Error::other)?;
        put("record_batch", codec.name(), &[&[0], &batch[..]].concat())?;
        put(
            "record_batch",
            &format!("{}-body", codec.name()),
            &[&[1], &batch[21..]].concat(),
        )?;
    }
    Ok(())
}
