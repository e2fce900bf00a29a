//! One reader takes the whole file a second time, from the cache; the same reader takes it from nginx.

use super::one_reader::{Costs, Goals, report};
use crate::client::Connection;
use crate::figure::Figure;
use crate::nginx::Nginx;
use crate::stage::{Gateway, Place};

pub(super) fn measure(place: &Place) -> anyhow::Result<Vec<Figure>> {
    let gateway = Gateway::with_cache(place, "cached")?;
    let agent = gateway.start_agent("bench", &place.dir().join("shared"))?;
    let nginx = Nginx::start(place)?;
    let (mut ours, mut theirs) = (Costs::default(), Costs::default());
    // The first pairs fill caches, the gateway's own too, and count for nothing.
    for pair in 0..=place.pick(5, 3) + 1 {
        if pair == 2 {
            (ours, theirs) = (Costs::default(), Costs::default());
        }
        if let Some(nginx) = &nginx {
            theirs.download(Connection::open(nginx.address, None)?, Nginx::PATH, &nginx.process, None)?;
        }
        ours.download(gateway.connect()?, &agent.path, &gateway.process, Some(&agent.process))?;
    }
    Ok(report("one reader, from the cache, beside nginx", Goals { speed: 0.95, cpu: 0.50 }, &ours, &theirs))
}
