//! Client quotas: what is refused, what the image keeps, and which quota holds for a client.

use super::*;

fn part(kind: &str, name: Option<&str>) -> alter::EntityData {
    alter::EntityData {
        entity_type: kind.into(),
        entity_name: name.map(Str::from),
        ..Default::default()
    }
}

fn set(entity: &[(&str, Option<&str>)], key: &str, value: Option<f64>) -> alter::EntryData {
    alter::EntryData {
        entity: entity
            .iter()
            .map(|(kind, name)| part(kind, *name))
            .collect(),
        ops: vec![alter::OpData {
            key: key.into(),
            value: value.unwrap_or_default(),
            remove: value.is_none(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// Applies the request; the error codes of its entries.
fn ask(image: &mut Image, entries: Vec<alter::EntryData>) -> Vec<i16> {
    let request = alter::AlterClientQuotasRequest {
        entries,
        ..Default::default()
    };
    let (records, response) = alter(image, &request);
    for record in &records {
        image.apply(image.offset() + 1, record).unwrap();
    }
    response
        .entries
        .iter()
        .map(|entry| entry.error_code)
        .collect()
}

#[test]
fn quotas_are_set_changed_and_removed_and_nonsense_is_refused() {
    let mut image = Image::default();
    let bob = [(USER, Some("bob"))];
    let invalid = ErrorCode::INVALID_REQUEST.0;
    for (entity, key, value, told) in [
        (&bob[..], PRODUCER_BYTE_RATE, Some(1024.0), 0),
        (&bob, CONSUMER_BYTE_RATE, Some(0.0), invalid),
        (&bob, CONSUMER_BYTE_RATE, Some(1.5), invalid),
        (&bob, CONSUMER_BYTE_RATE, Some(1e30), invalid),
        (&bob, "producer_byte", Some(1.0), invalid),
        (&bob, "request_percentage", Some(10.0), invalid),
        (&[], PRODUCER_BYTE_RATE, Some(1.0), invalid),
        (
            &[("group", Some("g"))],
            PRODUCER_BYTE_RATE,
            Some(1.0),
            invalid,
        ),
        (&[(USER, Some(""))], PRODUCER_BYTE_RATE, Some(1.0), invalid),
        (
            &[(IP, None), (USER, None)],
            PRODUCER_BYTE_RATE,
            Some(1.0),
            invalid,
        ),
        (
            &[(IP, None)],
            "connection_creation_rate",
            Some(1.0),
            invalid,
        ),
        (&[(IP, None)], PRODUCER_BYTE_RATE, Some(1.0), invalid),
        (
            &[(USER, None), (CLIENT_ID, None)],
            CONSUMER_BYTE_RATE,
            Some(7.0),
            0,
        ),
        (&bob, CONSUMER_BYTE_RATE, None, 0),
    ] {
        let entry = set(entity, key, value);
        assert_eq!(
            ask(&mut image, vec![entry]),
            [told],
            "{entity:?} {key} {value:?}"
        );
    }
    let twice = vec![
        set(&bob, PRODUCER_BYTE_RATE, Some(9.0)),
        set(&bob, CONSUMER_BYTE_RATE, Some(9.0)),
    ];
    assert_eq!(ask(&mut image, twice), [0, invalid]);
    assert_eq!(image.client_quotas().len(), 2);
    // Whatever order an entity's parts come in, and whoever wrote the snapshot.
    let gone = set(&[(CLIENT_ID, None), (USER, None)], CONSUMER_BYTE_RATE, None);
    assert_eq!(ask(&mut image, vec![gone]), [0]);
    let quotas = image.client_quotas();
    assert_eq!(quotas.len(), 1);
    assert_eq!(quotas.values().next().unwrap()[PRODUCER_BYTE_RATE], 9.0);
}

#[test]
fn a_filter_finds_entities_by_name_by_default_and_by_type() {
    let mut image = Image::default();
    let entries = vec![
        set(&[(USER, Some("bob"))], PRODUCER_BYTE_RATE, Some(1.0)),
        set(&[(USER, None)], PRODUCER_BYTE_RATE, Some(2.0)),
        set(
            &[(USER, Some("bob")), (CLIENT_ID, Some("c"))],
            PRODUCER_BYTE_RATE,
            Some(3.0),
        ),
        set(&[(CLIENT_ID, Some("c"))], PRODUCER_BYTE_RATE, Some(4.0)),
    ];
    assert_eq!(ask(&mut image, entries), [0; 4]);
    let find = |components: &[(&str, i8, Option<&str>)], strict| {
        let component =
            |(kind, match_type, name): &(&str, i8, Option<&str>)| describe::ComponentData {
                entity_type: (*kind).into(),
                match_type: *match_type,
                r#match: name.map(Str::from),
                ..Default::default()
            };
        let request = describe::DescribeClientQuotasRequest {
            components: components.iter().map(component).collect(),
            strict,
            ..Default::default()
        };
        let answer = super::describe(&image, &request);
        let entries = answer.entries.ok_or(answer.error_code)?;
        let mut values: Vec<i64> = entries
            .iter()
            .map(|one| one.values[0].value as i64)
            .collect();
        values.sort_unstable();
        Ok::<_, i16>(values)
    };
    assert_eq!(find(&[], false), Ok(vec![1, 2, 3, 4]));
    assert_eq!(find(&[(USER, ANY, None)], false), Ok(vec![1, 2, 3]));
    assert_eq!(find(&[(USER, ANY, None)], true), Ok(vec![1, 2]));
    assert_eq!(find(&[(USER, DEFAULT, None)], true), Ok(vec![2]));
    assert_eq!(find(&[(USER, EXACT, Some("bob"))], false), Ok(vec![1, 3]));
    let both = [(USER, EXACT, Some("bob")), (CLIENT_ID, ANY, None)];
    assert_eq!(find(&both, true), Ok(vec![3]));
    assert_eq!(find(&[(USER, EXACT, None)], true), Err(42));
    assert_eq!(find(&[(USER, 7, None)], true), Err(42));
    assert_eq!(find(&[("group", ANY, None)], true), Err(35));
    assert_eq!(find(&[(USER, ANY, None), (USER, ANY, None)], true), Err(42));
    assert_eq!(find(&[(USER, ANY, None), (IP, ANY, None)], true), Err(42));
}

#[test]
fn the_most_special_quota_holds_and_says_who_shares_it() {
    let mut image = Image::default();
    let all: [(&[(&str, Option<&str>)], f64); 8] = [
        (&[(CLIENT_ID, None)], 8.0),
        (&[(CLIENT_ID, Some("c"))], 7.0),
        (&[(USER, None)], 6.0),
        (&[(USER, None), (CLIENT_ID, None)], 5.0),
        (&[(USER, None), (CLIENT_ID, Some("c"))], 4.0),
        (&[(USER, Some("bob"))], 3.0),
        (&[(USER, Some("bob")), (CLIENT_ID, None)], 2.0),
        (&[(USER, Some("bob")), (CLIENT_ID, Some("c"))], 1.0),
    ];
    let shared = [
        "-c", "-c", "bob-", "bob-c", "bob-c", "bob-", "bob-c", "bob-c",
    ];
    for ((entity, value), shared) in all.into_iter().zip(shared) {
        let entry = set(entity, PRODUCER_BYTE_RATE, Some(value));
        assert_eq!(ask(&mut image, vec![entry]), [0]);
        let table = QuotaTable::new(&image, PRODUCER_BYTE_RATE);
        let (limit, sharer) = table.find("bob", "c").unwrap();
        let told = format!("{}-{}", sharer.user, sharer.client);
        assert_eq!((limit, told.as_str()), (value, shared));
    }
    let table = QuotaTable::new(&image, PRODUCER_BYTE_RATE);
    assert_eq!(table.find("eve", "d").unwrap().0, 5.0);
    assert!(QuotaTable::new(&image, CONSUMER_BYTE_RATE).is_empty());
}
