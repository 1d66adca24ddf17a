//! Where an Apache Kafka is installed and how its broker is started: by its own scripts where they
//! are there, else by its jars. Starts nothing itself.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a broker of the lab gets of memory, where nobody says otherwise by KAFKA_HEAP_OPTS.
const HEAP: &str = "-Xms512m -Xmx512m";

/// See the module's words.
#[derive(Clone, Debug)]
pub struct KafkaHome {
    dir: PathBuf,
    scripts: bool,
}

impl KafkaHome {
    /// # Errors
    /// There is no Kafka; one line that says what was looked for.
    pub fn find(dir: &Path) -> Result<KafkaHome, String> {
        let dir =
            std::path::absolute(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let scripts = ["kafka-server-start.sh", "kafka-storage.sh"];
        let scripts = scripts
            .iter()
            .all(|name| dir.join("bin").join(name).is_file());
        if !scripts && !has_kafka_jar(&dir.join("libs")) {
            return Err(format!(
                "--kafka-home {}: neither bin/kafka-server-start.sh with bin/kafka-storage.sh nor libs/kafka_*.jar is there",
                dir.display()
            ));
        }
        Ok(KafkaHome { dir, scripts })
    }

    pub fn format(&self, cluster_id: &str, properties: &Path) -> Command {
        let mut command = match self.scripts {
            true => self.script("kafka-storage.sh"),
            false => self.java("kafka.tools.StorageTool", "-Xmx256m"),
        };
        command
            .args(["format", "-t", cluster_id, "-c"])
            .arg(properties);
        command
    }

    /// The broker itself, with whatever it writes beside its data under `home`.
    pub fn serve(&self, properties: &Path, home: &Path) -> Command {
        let mut command = match self.scripts {
            true => self.script("kafka-server-start.sh"),
            false => {
                let heap = std::env::var("KAFKA_HEAP_OPTS");
                self.java("kafka.Kafka", heap.as_deref().unwrap_or(HEAP))
            }
        };
        command.env("LOG_DIR", home);
        if std::env::var_os("KAFKA_HEAP_OPTS").is_none() {
            command.env("KAFKA_HEAP_OPTS", HEAP);
        }
        command.arg(properties).current_dir(home);
        command
    }

    fn script(&self, name: &str) -> Command {
        Command::new(self.dir.join("bin").join(name))
    }

    fn java(&self, class: &str, options: &str) -> Command {
        let mut command = Command::new("java");
        command.args(options.split_whitespace());
        command
            .arg("-cp")
            .arg(self.dir.join("libs").join("*"))
            .arg(class);
        command
    }
}

fn has_kafka_jar(libs: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(libs) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("kafka_") && name.ends_with(".jar")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_kafka_is_refused_with_what_was_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let refused = KafkaHome::find(dir.path()).unwrap_err();
        assert!(refused.contains("bin/kafka-server-start.sh"), "{refused}");
    }

    #[test]
    fn jars_alone_are_started_by_java_and_scripts_by_themselves() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("libs")).unwrap();
        std::fs::write(dir.path().join("libs/kafka_2.13-9.jar"), "").unwrap();
        let file = Path::new("node.properties");
        let home = KafkaHome::find(dir.path()).unwrap();
        assert_eq!(home.serve(file, dir.path()).get_program(), "java");
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        for name in ["kafka-server-start.sh", "kafka-storage.sh"] {
            std::fs::write(dir.path().join("bin").join(name), "").unwrap();
        }
        let home = KafkaHome::find(dir.path()).unwrap();
        let program = home.format("id", file).get_program().to_owned();
        assert!(program.to_string_lossy().ends_with("bin/kafka-storage.sh"));
    }
}
