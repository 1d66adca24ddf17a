//! Property files as people write them, and mistakes in them.

use super::*;

fn load(text: &str) -> Result<BrokerConfig, ConfigError> {
    BrokerConfig::from_properties(properties::parse("server.properties", text)?)
}

#[test]
fn nothing_given_is_one_broker_at_home() {
    let config = load("").unwrap();
    assert_eq!(config.listeners[0].port, 9092);
    assert_eq!(config.log_dirs, [PathBuf::from("./highwater-data")]);
    assert_eq!(config.socket_request_max_bytes, 100 << 20);
    assert!(config.auto_create_topics_enable && config.shards > 0);
}

#[test]
fn a_kafka_file_loads_and_what_has_no_effect_is_known() {
    let text = "process.roles=broker,controller\nnode.id=7\ncontroller.quorum.voters=7@localhost:9093\n\
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093\nadvertised.listeners=PLAINTEXT://localhost:9092\n\
        controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
        num.network.threads=3\nnum.io.threads=8\nlog.dirs=/tmp/a, /tmp/b\nlog.retention.hours=168\n";
    let config = load(text).unwrap();
    assert_eq!(config.node_id, NodeId(7));
    assert_eq!(
        config.listeners.len(),
        1,
        "the controller's listener is not a broker's"
    );
    assert_eq!(config.log_dirs.len(), 2);
    let idle: Vec<_> = config
        .without_effect()
        .map(|property| property.key.as_str())
        .collect();
    assert_eq!(idle, ["num.io.threads", "num.network.threads"]);
}

#[test]
fn the_command_line_wins_over_the_file_and_a_later_line_over_an_earlier_one() {
    let file = std::env::temp_dir().join(format!(
        "highwater-config-{}.properties",
        std::process::id()
    ));
    std::fs::write(
        &file,
        "num.partitions=2\nnum.partitions = 3 \nlog.retention.bytes=1\n",
    )
    .unwrap();
    let config = BrokerConfig::load(Some(&file), &["log.retention.bytes=5".into()]).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(config.num_partitions, 3);
    assert_eq!(config.given("log.retention.bytes"), Some("5"));
    let missing = BrokerConfig::load(Some(&file), &[])
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with(&file.display().to_string()),
        "{missing}"
    );
}

#[test]
fn settings_of_one_listener_and_of_plugins_do_not_stop_the_start() {
    let config = load("listener.name.plaintext.max.connections=9\nrsm.config.bucket=b").unwrap();
    let (name, setting) = config.listener_settings().next().unwrap();
    assert_eq!(
        (name, setting.name),
        ("listener.name.plaintext.max.connections", "max.connections")
    );
    assert_eq!(config.without_effect().count(), 2);
    assert!(load("listener.name.plaintext.max.connections=x").is_err());
}

#[test]
fn mistakes_are_told_with_file_line_and_a_guess() {
    let said = |text| load(text).unwrap_err().to_string();
    assert_eq!(
        said("\nnum.partitons=3"),
        "server.properties:2: unknown key 'num.partitons' (did you mean 'num.partitions'?)"
    );
    assert_eq!(
        said("x.y.z.w=1"),
        "server.properties:1: unknown key 'x.y.z.w'"
    );
    assert_eq!(
        said("num.partitions=0"),
        "server.properties:1: Invalid value 0 for configuration num.partitions: Value must be at least 1"
    );
    assert!(said("listeners=SSL://:9093").contains("TLS and SASL are not available"));
    assert!(said("listeners=nonsense").starts_with("server.properties:1: 'nonsense'"));
    assert!(said("log.retention.ms=0").contains("must be unlimited (-1)"));
    assert!(said("log.roll.ms=0").contains("greater than or equal to 1"));
    assert!(said("node.id=1\nbroker.id=2").starts_with("server.properties:2: broker.id is 2"));
    assert!(said("broker.id=-1").ends_with("node.id: Value must be at least 0"));
    assert!(said("advertised.listeners=PLAINTEXT://0.0.0.0:9092").contains("nonroutable"));
    assert!(said("advertised.listeners=OTHER://a:9092").contains("no listener"));
    assert!(said("inter.broker.listener.name=OTHER").contains("no listener"));
    assert!(said("group.min.session.timeout.ms=9000000").contains("is above"));
    assert!(
        said("num.io.threads=none").ends_with("Not a number of type INT"),
        "Kafka's others are checked too"
    );
    assert!(said("num.partitions=").ends_with("Not a number of type INT"));
    assert!(said("log.dir=").ends_with("a broker needs a log directory"));
    assert!(said("max.connections.per.ip=0").contains("overrides"));
    let set = BrokerConfig::load(None, &["novalue".to_owned()]).unwrap_err();
    assert_eq!(set.to_string(), "--set novalue: expected KEY=VALUE");
}

#[test]
fn a_dedupe_buffer_that_cannot_work_stops_the_start() {
    let said = |text: &str| load(text).unwrap_err().to_string();
    let told = said("log.cleaner.dedupe.buffer.size=1048576");
    assert!(
        told.ends_with("must be at least 1MB per cleaner thread."),
        "{told}"
    );
    let two = "log.cleaner.dedupe.buffer.size=2097153\nlog.cleaner.threads=2";
    assert!(said(two).contains("1MB"));
    assert!(load("log.cleaner.dedupe.buffer.size=1048577").is_ok());
}
