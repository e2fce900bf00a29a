//! What people use today to reach a server behind a network that it can only dial out of: reverse tunnels, each as its
//! manual says, to the nginx that has the file. What is not installed is left out.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::client::Connection;
use crate::machine;
use crate::nginx::Nginx;
use crate::process::Process;
use crate::stage::{Place, free_address};

/// How long a tunnel may take until bytes go through it.
const READY: Duration = Duration::from_secs(20);
/// Where OpenSSH's server wants an empty folder, and does not make it.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// A kind of tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// rathole, over plain TCP.
    Rathole,
    /// OpenSSH: `ssh -R`, which encrypts.
    Ssh,
    /// wstunnel, over a WebSocket without TLS.
    Wstunnel,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Rathole, Self::Ssh, Self::Wstunnel];

    /// What it is called in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rathole => "rathole",
            Self::Ssh => "ssh -R",
            Self::Wstunnel => "wstunnel",
        }
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Rathole => &["rathole"],
            Self::Ssh => &["sshd", "ssh", "ssh-keygen"],
            Self::Wstunnel => &["wstunnel"],
        }
    }

    fn is_installed(self) -> bool {
        self.programs().iter().all(|program| machine::find(program).is_some())
    }

    fn version(self) -> String {
        let [program, flag] = match self {
            Self::Rathole => ["rathole", "--version"],
            Self::Ssh => ["ssh", "-V"],
            Self::Wstunnel => ["wstunnel", "--version"],
        };
        let said = machine::find(program).map(|program| machine::said(&program, flag)).unwrap_or_default();
        match said.lines().find_map(|line| line.strip_prefix("Build Version:")) {
            // rathole's way of saying it.
            Some(version) => format!("{} {}", self.name(), version.trim()),
            None => said.lines().next().unwrap_or(self.name()).to_owned(),
        }
    }
}

/// Which are here, and which are not.
pub fn describe() -> String {
    let (here, missing): (Vec<_>, Vec<_>) = Kind::ALL.into_iter().partition(|kind| kind.is_installed());
    let here: Vec<_> = here.into_iter().map(Kind::version).collect();
    let missing: Vec<_> = missing.into_iter().map(Kind::name).collect();
    match (here.is_empty(), missing.is_empty()) {
        (_, true) => here.join("; "),
        (true, false) => format!("not installed: {}", missing.join(", ")),
        (false, false) => format!("{}; not installed: {}", here.join("; "), missing.join(", ")),
    }
}

/// A tunnel that runs.
#[derive(Debug)]
pub struct Tunnel {
    /// Which.
    pub kind: Kind,
    /// Where readers find the file, by nginx's path.
    pub address: SocketAddr,
    // The one that dials out first: the other's children end with its connection.
    _processes: [Process; 2],
}

impl Tunnel {
    /// Starts every tunnel that is installed, in a folder of the row's own.
    pub fn start_all(place: &Place, row: &str, nginx: &Nginx) -> anyhow::Result<Vec<Self>> {
        let installed = Kind::ALL.into_iter().filter(|kind| kind.is_installed());
        installed.map(|kind| Self::start(kind, place, row, nginx).context(kind.name())).collect()
    }

    fn start(kind: Kind, place: &Place, row: &str, nginx: &Nginx) -> anyhow::Result<Self> {
        let dir = place.dir().join(format!("{row}-{}", kind.programs()[0]));
        fs::create_dir_all(&dir)?;
        let (server, address) = (free_address()?, free_address()?);
        let ends = Ends { dir: &dir, server, address, nginx: nginx.address };
        let [mut server, client] = match kind {
            Kind::Rathole => ends.rathole()?,
            Kind::Ssh => ends.ssh()?,
            Kind::Wstunnel => ends.wstunnel()?,
        };
        let process = Process::start(&mut server, dir.join("server.log"))?;
        ends.await_server()?;
        let mut client = client;
        let processes = [Process::start(&mut client, dir.join("client.log"))?, process];
        let tunnel = Self { kind, address, _processes: processes };
        let deadline = Instant::now() + READY;
        while let Err(error) = tunnel.try_it() {
            ensure!(Instant::now() < deadline, "no bytes come through: {error:#} (see its logs with --keep)");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(tunnel)
    }

    fn try_it(&self) -> anyhow::Result<()> {
        let mut reader = Connection::open(self.address, None)?;
        reader.get(Nginx::PATH, Some((0, 0)))?;
        reader.drain(|_| ())
    }
}

/// What a tunnel connects.
struct Ends<'a> {
    dir: &'a Path,
    /// Where the side that dials out reaches the other.
    server: SocketAddr,
    address: SocketAddr,
    nginx: SocketAddr,
}

impl Ends<'_> {
    fn await_server(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY;
        while std::net::TcpStream::connect(self.server).is_err() {
            ensure!(Instant::now() < deadline, "its server does not listen (see its logs with --keep)");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn rathole(&self) -> anyhow::Result<[Command; 2]> {
        let Self { dir, server, address, nginx } = self;
        let token = "default_token = \"bench\"";
        let service = |side: &str| format!("[{side}.services.file]\n");
        let texts = [
            format!(
                "[server]\nbind_addr = \"{server}\"\n{token}\n{}bind_addr = \"{address}\"\nnodelay = true\n",
                service("server")
            ),
            format!(
                "[client]\nremote_addr = \"{server}\"\n{token}\n{}local_addr = \"{nginx}\"\nnodelay = true\n",
                service("client")
            ),
        ];
        let mut commands = Vec::new();
        for (side, text) in ["--server", "--client"].into_iter().zip(texts) {
            let file = dir.join(format!("{}.toml", side.trim_start_matches('-')));
            fs::write(&file, text)?;
            let mut command = Command::new(found("rathole")?);
            command.arg(side).arg(file);
            commands.push(command);
        }
        commands.try_into().map_err(|_| anyhow::anyhow!("a tunnel has two sides"))
    }

    fn wstunnel(&self) -> anyhow::Result<[Command; 2]> {
        let Self { server, address, nginx, .. } = self;
        let program = found("wstunnel")?;
        let (mut far, mut near) = (Command::new(&program), Command::new(&program));
        far.arg("server").arg(format!("ws://{server}"));
        near.args(["client", "-R"]).arg(format!("tcp://{address}:{nginx}")).arg(format!("ws://{server}"));
        Ok([far, near])
    }

    /// A server with keys and a configuration of its own, which only the one key of this run can log in to.
    fn ssh(&self) -> anyhow::Result<[Command; 2]> {
        let Self { dir, server, address, nginx } = self;
        let key = |name: &str| -> anyhow::Result<PathBuf> {
            let file = dir.join(name);
            let made =
                Command::new(found("ssh-keygen")?).args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file).output()?;
            ensure!(made.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&made.stderr).trim());
            Ok(file)
        };
        let (host, user) = (key("host")?, key("user")?);
        if !Path::new(PRIVILEGE_SEPARATION).is_dir() {
            // Only root's server wants it, and only root can make it.
            let _ = fs::create_dir(PRIVILEGE_SEPARATION);
        }
        let config = format!(
            "ListenAddress {server}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
             AuthenticationMethods publickey\nPermitRootLogin prohibit-password\nAllowTcpForwarding yes\n",
            host.display(),
            user.with_extension("pub").display(),
        );
        fs::write(dir.join("sshd_config"), config)?;
        // It starts itself anew for each connection, and so wants its whole path.
        let mut far = Command::new(found("sshd")?);
        far.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config"));
        let who = Command::new("id").arg("-un").output()?;
        let mut near = Command::new(found("ssh")?);
        near.args(["-N", "-T", "-F", "none", "-i"]).arg(&user);
        for option in [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "ExitOnForwardFailure=yes",
        ] {
            near.args(["-o", option]);
        }
        near.arg("-R").arg(format!("{address}:{nginx}")).arg("-p").arg(server.port().to_string());
        near.arg(format!("{}@{}", String::from_utf8_lossy(&who.stdout).trim(), server.ip()));
        Ok([far, near])
    }
}

fn found(program: &str) -> anyhow::Result<PathBuf> {
    match machine::find(program) {
        Some(file) => Ok(file),
        None => bail!("{program} is not installed"),
    }
}
