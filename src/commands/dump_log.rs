//! `highwater dump-log`: the files of a partition's log in words, as Kafka's DumpLogSegments
//! prints them. Reads plain files; needs no broker and disturbs none.

use std::io::{self, BufWriter};
use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::dump_decoder::LogDecoder;
use crate::log::dump::{Dump, DumpOptions};

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater dump-log --print-data-log --files /var/lib/highwater/orders-0/00000000000000000000.log"
)]
pub struct DumpLog {
    /// Log segments, indexes, producer snapshots and leader epoch checkpoints, comma-separated.
    #[arg(
        long,
        value_name = "FILE[,...]",
        required = true,
        value_delimiter = ','
    )]
    files: Vec<PathBuf>,
    /// Print keys and values too.
    #[arg(long)]
    print_data_log: bool,
    /// Print every record, not only batches.
    #[arg(long)]
    deep_iteration: bool,
    /// Check an index as it is checked when a broker starts, and print no entries.
    #[arg(long)]
    index_sanity_check: bool,
    /// Compare an index with its log, and print no entries.
    #[arg(long)]
    verify_index_only: bool,
    /// Print keys and values without offsets, timestamps and sizes.
    #[arg(long)]
    skip_record_metadata: bool,
    /// Read the records as those of __consumer_offsets.
    #[arg(long, group = "decoder")]
    offsets_decoder: bool,
    /// Read the records as those of __transaction_state.
    #[arg(long, group = "decoder")]
    transaction_log_decoder: bool,
    /// Read the records as those of __cluster_metadata.
    #[arg(long, group = "decoder")]
    cluster_metadata_decoder: bool,
    /// Bytes of a log file to read.
    #[arg(long, value_name = "BYTES", default_value_t = i32::MAX as u64)]
    max_bytes: u64,
}

impl DumpLog {
    pub fn run(self) -> Result<(), Failure> {
        let decoder = if self.offsets_decoder {
            LogDecoder::Offsets
        } else if self.transaction_log_decoder {
            LogDecoder::Transactions
        } else if self.cluster_metadata_decoder {
            LogDecoder::Metadata
        } else {
            LogDecoder::Text
        };
        let options = DumpOptions {
            // Who names a decoder wants to see what it reads.
            print_data: self.print_data_log || decoder != LogDecoder::Text,
            deep: self.deep_iteration,
            verify_index_only: self.verify_index_only,
            index_sanity_check: self.index_sanity_check,
            skip_record_metadata: self.skip_record_metadata,
            max_bytes: self.max_bytes,
        };
        let mut out = BufWriter::new(io::stdout().lock());
        let mut dump = Dump::new(options, &decoder, &mut out);
        for file in &self.files {
            dump.file(file).map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Failure::from(error),
                _ => format!("{}: {error}", file.display()).into(),
            })?;
        }
        // What is wrong with the files is told on the error stream and is not the tool's failure.
        dump.finish(&mut io::stderr().lock())?;
        Ok(())
    }
}
