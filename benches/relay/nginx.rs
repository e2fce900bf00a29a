//! What everything is measured beside: nginx with the same file.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::process::Process;
use crate::stage::{Place, READY, free_address};

/// nginx with one worker, serving the same file from the same folder by `sendfile`.
#[derive(Debug)]
pub struct Nginx {
    /// The process, which is its own worker.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Nginx {
    /// The path of the file.
    pub const PATH: &str = "/data.bin";

    /// Starts nginx. `None` where it is not installed.
    pub fn start(place: &Place) -> anyhow::Result<Option<Self>> {
        let Some(program) = place.nginx() else { return Ok(None) };
        let address = free_address()?;
        let dir = place.dir().join("nginx");
        fs::create_dir_all(&dir)?;
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("  {kind}_temp_path {}/{kind};\n", dir.display()))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {dir}/pid;\nerror_log stderr;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n{temporary}  access_log off;\n  sendfile on;\n  tcp_nodelay on;\n  keepalive_requests 1000000;\n\
             \x20 server {{ listen {address}; root {root}; }}\n}}\n",
            dir = dir.display(),
            root = place.dir().join("shared").display(),
        );
        fs::write(dir.join("nginx.conf"), config)?;
        let mut command = Command::new(program);
        command.arg("-e").arg("stderr").arg("-p").arg(&dir).arg("-c").arg(dir.join("nginx.conf"));
        let process = Process::start(&mut command, dir.join("log"))?;
        let deadline = Instant::now() + READY;
        while TcpStream::connect(address).is_err() {
            ensure!(Instant::now() < deadline, "nginx does not listen: see its log with --keep");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(Self { process, address }))
    }
}
