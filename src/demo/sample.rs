//! The folder that the demo serves when it is given none: made once, and the same on every machine.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

const DATASET_BYTES: u64 = 300 * 1024 * 1024;
const BLOCK: usize = 1024 * 1024;

const REPORT: &str = "# Run report\n\n\
    The agent measured, and wrote what it found into dataset.bin.\n\
    The picture beside this report shows it.\n";

/// Writes the sample into `dir` unless it is there already.
///
/// # Errors
/// When the folder cannot be written.
pub async fn prepare(dir: &Path) -> io::Result<PathBuf> {
    let dir = dir.to_owned();
    tokio::task::spawn_blocking(move || write(&dir).map(|()| dir)).await.map_err(io::Error::other)?
}

fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir.join("reports"))?;
    fs::write(dir.join("reports/report.md"), REPORT)?;
    fs::write(dir.join("reports/picture.svg"), picture())?;
    let dataset = dir.join("dataset.bin");
    if fs::metadata(&dataset).is_ok_and(|metadata| metadata.len() == DATASET_BYTES) {
        return Ok(());
    }
    // Under another name until it is whole: a demo that was stopped here starts over.
    let partial = dir.join(".dataset.bin.part");
    let mut file = BufWriter::with_capacity(BLOCK, File::create(&partial)?);
    let mut random = SmallRng::seed_from_u64(1);
    let mut block = vec![0; BLOCK];
    for _ in 0..DATASET_BYTES / BLOCK as u64 {
        random.fill_bytes(&mut block);
        file.write_all(&block)?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?;
    fs::rename(partial, dataset)
}

/// A curve of a few hundred points.
fn picture() -> String {
    let points: Vec<_> = (0..400)
        .map(|x| {
            let t = f64::from(x) / 40.0;
            format!("{x},{:.1}", 100.0 - 80.0 * t.sin() * (-t / 5.0).exp())
        })
        .collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 400 200\">\
         <polyline fill=\"none\" stroke=\"#1769aa\" stroke-width=\"2\" points=\"{}\"/></svg>\n",
        points.join(" ")
    )
}
