//! A disk that is soon full.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk of its own.
pub struct Disk(tempfile::TempDir);

impl Disk {
    /// None where this process may not mount one, which takes root's rights.
    pub fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(folder)),
            refused => {
                eprintln!("skipped: a tmpfs of its own cannot be mounted here: {refused:?}");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }

    /// To the last page.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        for size in [1 << 20, 4096] {
            while filler.write_all(&vec![1; size]).is_ok() {}
        }
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, for the gateway may hold files on it still.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
