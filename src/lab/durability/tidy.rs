//! What a deleted topic leaves on disk, until it has gone. The kernel takes what was written and
//! not yet written back off the account of whoever removes the file: in the measured time of the
//! next run it would look as if the brokers had written less. Blocks the calling thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(5);
/// How the directory of a cluster of [`crate::lab::nodes`] begins; in it each node has one.
const CLUSTER: &str = "highwater-lab-";

/// Waits until no cluster under `data` has a directory of this topic any more; false if one has
/// after `limit`.
pub fn wait_until_gone(data: &Path, topic: &str, limit: Duration) -> bool {
    let began = Instant::now();
    let partition = format!("{topic}-");
    while is_there(data, &partition) {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

fn is_there(data: &Path, partition: &str) -> bool {
    let nodes = beginning(data, CLUSTER);
    let mut logs = nodes.flat_map(|cluster| beginning(&cluster, ""));
    logs.any(|node| beginning(&node, partition).next().is_some())
}

/// What in a directory begins with this; nothing where there is no directory.
fn beginning<'a>(directory: &Path, with: &'a str) -> impl Iterator<Item = PathBuf> + use<'a> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(move |entry| entry.file_name().to_string_lossy().starts_with(with));
    named.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doomed_directory_of_any_node_is_waited_for_and_other_topics_are_not() {
        let data = tempfile::tempdir().unwrap();
        let node = data.path().join("highwater-lab-1/data-2");
        fs::create_dir_all(node.join("warm-x-0")).unwrap();
        let limit = Duration::from_millis(20);
        assert!(wait_until_gone(data.path(), "x", limit));
        let doomed = node.join("x-0.f00-delete");
        fs::create_dir(&doomed).unwrap();
        assert!(!wait_until_gone(data.path(), "x", limit));
        let removing = std::thread::spawn(move || {
            std::thread::sleep(limit);
            fs::remove_dir(doomed).unwrap();
        });
        assert!(wait_until_gone(data.path(), "x", Duration::from_secs(60)));
        removing.join().unwrap();
    }
}
