//! Files and directories.
//!
//! Any executor. [`File`] works on an open descriptor; the path operations all run off the
//! executor, because a directory lookup, a rename or an unlink may wait for the disk. Buffered
//! files go through the page cache, direct files (O_DIRECT) take aligned buffers. Nothing is
//! retried: after a failed write or sync the caller must give the directory up.

mod aligned;
mod file;
mod path;
mod range;
mod read_buffer;
mod under_way;

pub use aligned::AlignedBuf;
pub use file::{File, OpenOptions, WRITE_NOW_MAX};
pub use path::{
    DirEntry, FileLock, READ_WHOLE_MAX, Space, create_dir_all, exists, file_len, lock_file, read,
    read_dir, read_dir_with, read_many, remove_dir_all, remove_file, rename, space, sync_dir,
    write_atomic,
};
pub use range::FileRange;
pub(crate) use range::Sent;
pub use read_buffer::{ReadBuffer, ReadBuffers};
pub use under_way::under_way;
