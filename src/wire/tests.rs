//! What must hold for every message at every version. Samples are made from the schemas by an
//! encoder of its own; every failure names the message, version and seed.

use bytes::Bytes;

use super::message::MessageInfo;
use super::messages::{AnyRecord, AnyRequest, AnyResponse, CATALOG};
use super::metadata_record;
use super::schema::model::{Kind, Message as Schema};
use super::schema::sample::Sampler;
use super::schema::{load, parse};
use super::{Reader, Writer};

const SEED: u64 = 0x4869_6768_7761_7465;

fn schemas() -> Vec<(Schema, &'static MessageInfo)> {
    let find = |name: &str| {
        CATALOG
            .iter()
            .find(|info| info.name == name)
            .expect("in the catalog")
    };
    load()
        .into_iter()
        .map(|schema| (find(&schema.name()), schema))
        .map(|(i, s)| (s, i))
        .collect()
}

/// Calls `test` with every message, version and some seeds.
fn for_all(rounds: u64, test: impl Fn(&Schema, &MessageInfo, i16, u64)) {
    for (schema, info) in &schemas() {
        for version in schema.versions.iter() {
            for round in 0..rounds {
                test(schema, info, version, SEED.wrapping_add(round));
            }
        }
    }
}

#[test]
fn the_catalog_agrees_with_the_schemas() {
    let schemas = schemas();
    assert_eq!(schemas.len(), CATALOG.len());
    assert_eq!(
        schemas
            .iter()
            .filter(|(s, _)| s.kind == Kind::Request)
            .count(),
        91
    );
    for (schema, info) in &schemas {
        assert_eq!(
            (info.min_version, info.max_version),
            (schema.versions.first, schema.versions.last)
        );
        for version in schema.versions.iter() {
            assert_eq!(
                (info.is_flexible)(version),
                schema.is_flexible(version),
                "{} v{version}",
                info.name
            );
        }
    }
}

#[test]
fn no_message_changes_on_its_way_through() {
    for_all(30, |schema, info, version, seed| {
        let bytes = Bytes::from(Sampler::new(schema, version, seed).sample());
        let passed = (info.pass)(bytes.clone(), version)
            .unwrap_or_else(|e| panic!("{} v{version} seed {seed}: {e}", info.name));
        assert_eq!(
            passed.encoded,
            Ok(bytes),
            "{} v{version} seed {seed}",
            info.name
        );
        assert!(passed.json.is_object());
    });
}

#[test]
fn a_message_that_ends_early_is_refused_at_every_byte() {
    for_all(2, |schema, info, version, seed| {
        let bytes = Bytes::from(Sampler::new(schema, version, seed).sample());
        for cut in 0..bytes.len() {
            let result = (info.pass)(bytes.slice(..cut), version);
            assert!(
                result.is_err(),
                "{} v{version} seed {seed} cut at {cut}",
                info.name
            );
        }
    });
}

#[test]
fn a_byte_too_many_is_refused() {
    for_all(1, |schema, info, version, seed| {
        let mut bytes = Sampler::new(schema, version, seed).sample();
        bytes.push(0);
        assert!(
            (info.pass)(Bytes::from(bytes), version).is_err(),
            "{} v{version} seed {seed}",
            info.name
        );
    });
}

#[test]
fn a_version_out_of_range_is_refused() {
    for info in &CATALOG {
        for version in [
            info.min_version - 1,
            info.max_version + 1,
            i16::MAX,
            i16::MIN,
        ] {
            assert!(
                (info.pass)(Bytes::from_static(&[0; 64]), version).is_err(),
                "{} v{version}",
                info.name
            );
        }
    }
}

#[test]
fn garbled_messages_do_not_panic_and_what_is_accepted_is_stable() {
    for_all(20, |schema, info, version, seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut bytes = Sampler::new(schema, version, seed).sample();
        for _ in 0..rng.usize(1..4) {
            if bytes.is_empty() {
                break;
            }
            let at = rng.usize(..bytes.len());
            match rng.u8(..4) {
                0 => bytes[at] = 0xff,
                1 => bytes[at] = 0x7f,
                2 => bytes[at] ^= 1 << rng.u8(..8),
                _ => bytes[at] = rng.u8(..),
            }
        }
        let Ok(first) = (info.pass)(Bytes::from(bytes), version) else {
            return;
        };
        let Ok(encoded) = first.encoded else { return };
        let second = (info.pass)(encoded.clone(), version).unwrap_or_else(|e| {
            panic!(
                "{} v{version} seed {seed}: own bytes refused: {e}",
                info.name
            )
        });
        assert_eq!(
            second.encoded,
            Ok(encoded),
            "{} v{version} seed {seed}",
            info.name
        );
        assert_eq!(
            second.json, first.json,
            "{} v{version} seed {seed}",
            info.name
        );
    });
}

#[test]
fn random_bytes_do_not_panic() {
    let mut rng = fastrand::Rng::with_seed(SEED);
    for info in &CATALOG {
        for version in info.min_version..=info.max_version {
            for _ in 0..50 {
                let len = rng.usize(..200);
                let small = rng.bool();
                let bytes: Bytes = (0..len)
                    .map(|_| if small { rng.u8(..4) } else { rng.u8(..) })
                    .collect();
                let _ = (info.pass)(bytes, version);
            }
        }
    }
}

#[test]
fn every_request_response_and_record_is_found_by_its_key() {
    for_all(1, |schema, info, version, seed| {
        let bytes = Bytes::from(Sampler::new(schema, version, seed).sample());
        let mut r = Reader::new(bytes.clone());
        let mut w = Writer::new();
        let key = info.key;
        let (found, json) = match schema.kind {
            Kind::Request => {
                let any = AnyRequest::decode(key, &mut r, version).unwrap();
                any.encode(&mut w, version).unwrap();
                (any.key(), any.to_json(version))
            }
            Kind::Response => {
                let any = AnyResponse::decode(key, &mut r, version).unwrap();
                any.encode(&mut w, version).unwrap();
                (any.key(), any.to_json(version))
            }
            Kind::Record => {
                let any = AnyRecord::decode(key, &mut r, version).unwrap();
                let value = metadata_record::encode_record(&any, version).unwrap();
                assert_eq!(
                    metadata_record::decode_record(value),
                    Ok((any.clone(), version))
                );
                any.encode(&mut w, version).unwrap();
                (any.key(), any.to_json(version))
            }
            _ => return,
        };
        assert_eq!((found, w.into_bytes()), (key, bytes.clone()));
        assert_eq!(json, (info.pass)(bytes, version).unwrap().json);
    });
    assert!(AnyRequest::decode(4, &mut Reader::new(Bytes::new()), 0).is_err());
}

#[test]
fn a_schema_mistake_is_reported_with_its_line() {
    for (text, line, part) in [
        ("request A 0 versions 0-1\n  x int33\n", 2, "no type"),
        ("request A 0 versions 0-1\n  x int32 2+\n", 2, "not within"),
        ("request A 0 versions 0-1\n   x int32\n", 2, "deeper"),
        (
            "request A 0 versions 0-1\n  x int32\n    y int32\n",
            3,
            "deeper",
        ),
        ("request A 0 version 0\n", 1, "`versions` is missing"),
        ("\n# note\nanswer A 0 versions 0\n", 3, "no kind"),
        ("  x int32\n", 1, "before the first message"),
        (
            "data A versions 0\n  x int8 nonsense\n",
            2,
            "does not belong",
        ),
        ("data A versions 0\n  x int8 = word\n", 2, "no default"),
    ] {
        let error = parse::parse("a.hw", text).unwrap_err();
        assert_eq!((error.line, error.file.as_str()), (line, "a.hw"), "{text}");
        assert!(error.what.contains(part), "{error}");
    }
    for (text, line, part) in [
        ("data A versions 0\n  x int8 = 200\n", 2, "does not fit"),
        (
            "data A versions 0\n  x int8 nullable\n",
            2,
            "cannot be null",
        ),
        ("data A versions 0\n  x B\n", 2, "no fields"),
        ("data A versions 0\n  x int8 tag 0\n", 2, "not flexible"),
        (
            "data A versions 0\n  x []B\n    y int8\n  z []B\n    y int8\n",
            4,
            "two structs",
        ),
        (
            "data A versions 0\n  x int8\ndata A versions 0\n",
            3,
            "two messages",
        ),
        (
            "data A versions 0-1\n  x []B\n    y int8 1+\n",
            2,
            "no bytes",
        ),
        (
            "data A versions 0\n  x []B\n  struct B\n    y []B\n",
            3,
            "contains itself",
        ),
        ("request A versions 0\n  x int8\n", 1, "key number"),
    ] {
        let messages = parse::parse("a.hw", text).unwrap();
        let error = super::schema::check::check(&messages).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.what.contains(part), "{error}");
    }
}
