//! The database that a URL names, and connections to it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _};

use super::dialect::Dialect;
use super::options::{OpenError, StoreOptions};

/// What a path keeps as it is within a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A database that a URL names.
pub(super) struct Target {
    pub(super) dialect: Dialect,
    options: AnyConnectOptions,
    /// SQLite's, as an absolute path.
    pub(super) file: Option<PathBuf>,
    /// For messages: no user, no password.
    pub(super) shown: String,
}

impl Target {
    pub(super) fn parse(url: &str, migrate: bool) -> Result<Self, OpenError> {
        let dialect = match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Dialect::Sqlite,
            Some("postgres" | "postgresql") => Dialect::Postgres,
            _ => return Err(OpenError::Scheme),
        };
        if dialect == Dialect::Sqlite && (url.contains(":memory:") || url.contains("mode=memory")) {
            return Err(OpenError::InMemory);
        }
        let (url, file, shown) = match dialect {
            Dialect::Sqlite => sqlite_file(url, migrate)?,
            Dialect::Postgres => (url.to_owned(), None, String::new()),
        };
        // The driver's own text could repeat what stands in the URL.
        let mut options =
            AnyConnectOptions::from_str(&url).map_err(|_| OpenError::Url("it cannot be parsed".to_owned()))?;
        let shown = match dialect {
            Dialect::Sqlite => shown,
            Dialect::Postgres => {
                let url = &options.database_url;
                let host = url.host_str().unwrap_or("localhost");
                format!("{host}:{}{}", url.port().unwrap_or(5432), url.path())
            }
        };
        // Statements of thousands of placeholders are no use in a log, and failures are reported by whoever asked.
        options = options.disable_statement_logging();
        Ok(Self { dialect, options, file, shown })
    }

    /// Makes a SQLite file that is not there and may be made: for its owner alone, as SQLite then makes the files beside
    /// it.
    pub(super) fn make_private(&self) -> Result<(), OpenError> {
        let creates = self.options.database_url.query().is_some_and(|query| query.contains("mode=rwc"));
        let Some(file) = self.file.as_ref().filter(|_| creates) else { return Ok(()) };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(OpenError::NotWritable { path: self.shown.clone(), reason: error.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// One connection, used to look and to migrate before the pools exist.
    pub(super) async fn connect(&self, within: Duration) -> Result<AnyConnection, OpenError> {
        let connect = async {
            let mut conn = AnyConnection::connect_with(&self.options).await?;
            if self.dialect == Dialect::Sqlite {
                // The first statement is when SQLite looks into the file.
                for statement in self.dialect.on_connect() {
                    sqlx::query(*statement).execute(&mut conn).await?;
                }
            }
            Ok(conn)
        };
        match tokio::time::timeout(within, connect).await {
            Ok(outcome) => outcome.map_err(|error| self.connect_error(&error)),
            Err(_) => {
                let reason = format!("no answer within {} s", within.as_secs_f32());
                Err(OpenError::Connect { target: self.shown.clone(), reason })
            }
        }
    }

    fn connect_error(&self, error: &sqlx::Error) -> OpenError {
        let reason = match error {
            sqlx::Error::Configuration(_) => return OpenError::Url("an option in it is not known".to_owned()),
            sqlx::Error::Database(refusal) => refusal.message().to_owned(),
            sqlx::Error::Io(io) => io.to_string(),
            other => other.to_string(),
        };
        if self.dialect == Dialect::Postgres {
            return OpenError::Connect { target: self.shown.clone(), reason };
        }
        let code = error.as_database_error().and_then(|refusal| refusal.code());
        match code.and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff) {
            Some(26) => OpenError::NotADatabase { path: self.shown.clone() },
            Some(3 | 8 | 10 | 14 | 23) => OpenError::NotWritable { path: self.shown.clone(), reason },
            _ => OpenError::Connect { target: self.shown.clone(), reason },
        }
    }

    /// Connections for whatever there is to do.
    pub(super) fn pool(&self, connections: u32, options: &StoreOptions) -> AnyPool {
        self.pool_of(connections, options, &[])
    }

    /// The one connection that writes.
    pub(super) fn writer(&self, options: &StoreOptions) -> AnyPool {
        self.pool_of(1, options, self.dialect.on_connect_to_write())
    }

    fn pool_of(&self, connections: u32, options: &StoreOptions, more: &'static [&'static str]) -> AnyPool {
        let on_connect = self.dialect.on_connect();
        let pool = AnyPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(options.acquire_timeout)
            .after_connect(move |conn, _| {
                Box::pin(async move {
                    for statement in on_connect.iter().chain(more) {
                        sqlx::query(*statement).execute(&mut *conn).await?;
                    }
                    Ok(())
                })
            });
        let pool = match self.dialect {
            Dialect::Postgres => pool,
            // A full disk makes SQLite roll back by itself. The driver then still counts the transaction, and would
            // refuse every later one on this connection. The ping lets a rollback that is queued go first.
            Dialect::Sqlite => pool.after_release(|conn, _| {
                Box::pin(async move {
                    conn.ping().await?;
                    Ok(!conn.is_in_transaction())
                })
            }),
        };
        pool.connect_lazy_with(self.options.clone())
    }
}

/// The URL of a SQLite file as an absolute path, that path, and the path for messages. The driver reads the part after `sqlite://` as
/// a URL's host and path, in which `../..` would lose a step.
fn sqlite_file(url: &str, migrate: bool) -> Result<(String, Option<PathBuf>, String), OpenError> {
    let (file, parameters) = url.split_once('?').unwrap_or((url, ""));
    let file = file.trim_start_matches("sqlite:").trim_start_matches("//");
    if file.is_empty() {
        return Err(OpenError::InMemory);
    }
    let invalid = || OpenError::Url("the file's path is not UTF-8".to_owned());
    let file = PathBuf::from(&*percent_decode_str(file).decode_utf8().map_err(|_| invalid())?);
    // Steps back are taken by the file system, which knows where links lead; a folder that is missing is reported when
    // the file cannot be opened.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let absolute = match (folder.canonicalize(), file.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => std::path::absolute(&file).map_err(|error| OpenError::Url(error.to_string()))?,
    };
    let path = utf8_percent_encode(absolute.to_str().ok_or_else(invalid)?, PATH);
    let separator = if parameters.is_empty() { "" } else { "&" };
    let mode = match (parameters.split('&').any(|parameter| parameter.starts_with("mode=")), migrate) {
        (true, _) => String::new(),
        (false, true) => format!("{separator}mode=rwc"),
        (false, false) => format!("{separator}mode=rw"),
    };
    let url = format!("sqlite://{path}?{parameters}{mode}");
    Ok((url, Some(absolute), file.display().to_string()))
}
