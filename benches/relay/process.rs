//! A child process that does not outlive the bench, and what the kernel counts of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::machine;

/// How often a log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Ticks of `/proc/PID/stat` in a second: fixed for user space on Linux.
const TICKS: f64 = 100.0;

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it says on standard error goes to `log`.
    pub fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        let stderr = File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
        let child = child.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child, log })
    }

    /// Waits until `find` finds something in a line of the log.
    pub fn await_line<T>(&mut self, limit: Duration, find: impl Fn(&str) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            let text = fs::read_to_string(&self.log)?;
            if let Some(found) = text.lines().find_map(&find) {
                return Ok(found);
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("{} did not get ready: {}", self.log.display(), text.lines().last().unwrap_or("it said nothing"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Tells it to end, and waits until it has.
    pub fn terminate(&mut self, limit: Duration) -> anyhow::Result<()> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM)?;
        let deadline = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "a process does not end: see {}", self.log.display());
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Processor time used so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(&self.proc("stat"))
    }

    /// Begins a new peak of resident memory.
    pub fn reset_peak(&self) {
        // Refused where the kernel was built without it: the peak then counts from the start.
        let _ = fs::write(self.proc("clear_refs"), "5");
    }

    /// Resident memory in bytes: now, and at its peak.
    pub fn resident_bytes(&self) -> (f64, f64) {
        let status = self.proc("status");
        let read = |name| {
            let kib = machine::field(&status.to_string_lossy(), name)?;
            kib.split(' ').next()?.parse::<f64>().ok().map(|kib| kib * 1024.0)
        };
        (read("VmRSS").unwrap_or(f64::NAN), read("VmHWM").unwrap_or(f64::NAN))
    }

    fn proc(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(file)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bench's own processor time, in seconds.
pub fn own_cpu_seconds() -> f64 {
    cpu_seconds(Path::new("/proc/self/stat"))
}

fn cpu_seconds(stat: &Path) -> f64 {
    let text = fs::read_to_string(stat).unwrap_or_default();
    // The name, in parentheses, may hold anything; utime and stime are the 12th and 13th word after it.
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: Option<f64> =
        after_name.split_ascii_whitespace().skip(11).take(2).map(|word| word.parse::<f64>().ok()).sum();
    ticks.map_or(f64::NAN, |ticks| ticks / TICKS)
}
