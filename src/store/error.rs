use std::fmt;

/// Why a query has no answer.
#[derive(thiserror::Error)]
pub enum StoreError {
    /// The database is away, too slow, or has no room. Nothing is wrong with the request: try again later.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// Whoever asks has as many questions at the database as one may have, and waited for its turn.
    #[error("too many questions of one caller wait for the database")]
    Busy,
    /// The database refused a statement, or holds something this program did not write: a defect.
    #[error("the database refused: {0}")]
    Failed(#[source] sqlx::Error),
}

impl StoreError {
    /// Whether trying again later may help.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Busy)
    }
}

impl fmt::Debug for StoreError {
    /// As for people: the driver's own form would print the detail of a row, which may be anybody's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreError({self})")
    }
}
