use proptest::prelude::*;

use super::*;

const LONG: u64 = 64 << 20;

#[test]
fn sixteen_slots_then_a_queue() {
    let mut slots = Fairness::default();
    let tickets: Vec<_> = (0..20).map(|_| slots.request(&"a", LONG)).collect();
    let granted: Vec<_> = std::iter::from_fn(|| slots.grant()).map(|(_, ticket)| ticket).collect();
    assert_eq!(granted, tickets[..16]);
    slots.release(&"a");
    assert_eq!(slots.grant(), Some(("a", tickets[16])));
    assert_eq!(slots.grant(), None);
}

#[test]
fn short_reads_overtake_within_bounds() {
    let mut slots = Fairness { limit: 1, ..Fairness::default() };
    let long = slots.request(&"a", LONG);
    let short: Vec<_> = (0..6).map(|_| slots.request(&"a", 1)).collect();
    let mut order = Vec::new();
    while let Some((reader, ticket)) = slots.grant() {
        order.push(ticket);
        slots.release(&reader);
    }
    assert_eq!(order[..4], short[..4]);
    assert_eq!(order[4], long);
    assert_eq!(order[5..], short[4..]);
}

#[test]
fn asking_early_never_overtakes() {
    let mut slots = Fairness { limit: 1, ..Fairness::default() };
    assert!(slots.try_take(&"a"));
    assert!(!slots.try_take(&"b"));
    let waiting = slots.request(&"b", LONG);
    slots.release(&"a");
    assert!(!slots.try_take(&"a"));
    assert_eq!(slots.grant(), Some(("b", waiting)));
}

#[test]
fn a_refusal_lowers_the_estimate_and_success_raises_it() {
    let mut slots = Fairness::default();
    (0..5).for_each(|_| assert!(slots.try_take(&"a")));
    slots.refused(&"a");
    assert!(!slots.try_take(&"a"), "four are held and four is what the agent took");
    for _ in 0..RAISE_AFTER {
        slots.release(&"a");
        assert!(slots.try_take(&"a"));
    }
    assert!(slots.try_take(&"a"), "one more is tried");
}

#[test]
fn a_lone_refused_read_leaves_one_slot() {
    let mut slots = Fairness::default();
    assert!(slots.try_take(&"a"));
    slots.refused(&"a");
    assert!(slots.try_take(&"a"));
}

#[test]
fn fifty_waiting_connections_hold_no_more_than_another_readers_eight() {
    let mut slots = Fairness::default();
    (0..50).for_each(|_| _ = slots.request(&"many", LONG));
    while slots.grant().is_some() {}
    (0..8).for_each(|_| _ = slots.request(&"few", LONG));
    for _ in 0..8 {
        slots.release(&"many");
        assert_eq!(slots.grant().unwrap().0, "few", "the one that holds fewer");
    }
    slots.release(&"many");
    assert_eq!(slots.grant().unwrap().0, "many", "who has all it wants does not keep others from the rest");
}

#[test]
fn what_several_take_goes_in_the_name_of_the_one_with_the_least() {
    let mut slots = Fairness::default();
    assert_eq!(slots.least(&[]), None);
    assert!(slots.try_take(&"a"));
    assert_eq!(slots.least(&["a", "b"]), Some(&"b"));
    slots.request(&"b", 1);
    slots.request(&"b", 1);
    assert_eq!(slots.least(&["a", "b"]), Some(&"a"), "what it waits for counts too");
}

#[test]
fn nothing_is_kept_of_those_who_left() {
    let mut slots = Fairness::default();
    let ticket = slots.request(&"a", 1);
    assert!(slots.grant().is_some());
    slots.withdraw(&"a", ticket);
    let waiting = slots.request(&"b", 1);
    slots.withdraw(&"b", waiting);
    slots.release(&"a");
    assert_eq!((slots.readers.len(), slots.waiting(), slots.held()), (0, 0, 0));
}

/// Something that happens: a reader asks for something short or long, leaves its queue, or the read that was granted
/// so long ago ends.
#[derive(Debug, Clone)]
enum Step {
    Request(u8, bool),
    Withdraw(u8),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u8..8, any::<bool>()).prop_map(|(reader, short)| Step::Request(reader, short)),
        1 => (0_u8..8).prop_map(Step::Withdraw),
        3 => any::<usize>().prop_map(Step::Release),
    ]
}

/// One that waits: whose it is, and what it has been passed over by.
struct Waiting {
    reader: u8,
    short: bool,
    /// Its reader's own reads that were before it in its queue, and grants to its reader since.
    ahead: usize,
    own: usize,
}

proptest! {
    /// Whatever the arrivals: a reader without a slot waits for one grant to each other at most, and within a reader a
    /// short read waits for those before it and a long one for each four of them, a long one for four short ones each.
    #[test]
    fn nobody_waits_for_long(steps in prop::collection::vec(step(), 1..400)) {
        let mut slots = Fairness::default();
        let mut waiting: HashMap<Ticket, Waiting> = HashMap::new();
        let mut held: Vec<u8> = Vec::new();
        // Grants to others since a reader was without a slot and waited.
        let mut passed: HashMap<u8, usize> = HashMap::new();
        for step in steps {
            match step {
                Step::Request(reader, short) => {
                    let ahead = waiting.values().filter(|other| other.reader == reader && other.short == short).count();
                    let ticket = slots.request(&reader, if short { 1 } else { LONG });
                    waiting.insert(ticket, Waiting { reader, short, ahead, own: 0 });
                }
                Step::Withdraw(reader) => {
                    let ticket = waiting.iter().filter(|(_, other)| other.reader == reader).map(|(ticket, _)| *ticket).max_by_key(|ticket| ticket.0);
                    if let Some(ticket) = ticket {
                        slots.withdraw(&reader, ticket);
                        waiting.remove(&ticket);
                    }
                }
                Step::Release(which) if !held.is_empty() => {
                    let reader = held.swap_remove(which % held.len());
                    slots.release(&reader);
                }
                Step::Release(_) => {}
            }
            while let Some((reader, ticket)) = slots.grant() {
                let granted = waiting.remove(&ticket).expect("granted once");
                prop_assert_eq!(granted.reader, reader);
                let most = match granted.short {
                    true => granted.ahead + granted.ahead / OVERTAKES as usize + 1,
                    false => (granted.ahead + 1) * (OVERTAKES as usize + 1),
                };
                prop_assert!(granted.own <= most, "{} of its own went before, and {most} may", granted.own);
                let own = |reader: u8| held.iter().filter(|other| **other == reader).count();
                for other in waiting.values() {
                    prop_assert!(own(reader) <= own(other.reader), "{reader} holds more than {}", other.reader);
                }
                held.push(reader);
                passed.remove(&reader);
                for other in waiting.values_mut().filter(|other| other.reader == reader) {
                    other.own += 1;
                }
                let others: std::collections::HashSet<u8> = waiting.values().map(|other| other.reader).filter(|other| *other != reader).collect();
                for other in others {
                    if held.contains(&other) {
                        passed.remove(&other);
                    } else {
                        *passed.entry(other).or_default() += 1;
                        prop_assert!(passed[&other] <= 8, "{other} was passed over {} times", passed[&other]);
                    }
                }
            }
            passed.retain(|reader, _| waiting.values().any(|other| other.reader == *reader));
            prop_assert!(slots.held() <= CONCURRENT_READS);
            prop_assert_eq!((slots.waiting(), slots.held()), (waiting.len(), held.len()));
            prop_assert!(slots.waiting() == 0 || slots.held() == CONCURRENT_READS);
        }
    }

    /// Readers who always want more hold equally many slots, whatever their numbers of connections, and however long
    /// their reads take.
    #[test]
    fn readers_hold_equally_many(
        connections in prop::collection::vec(9_usize..60, 2..5),
        lasts in prop::collection::vec(1_u32..20, 5),
    ) {
        let mut slots = Fairness::default();
        for (reader, count) in connections.iter().enumerate() {
            (0..*count).for_each(|_| _ = slots.request(&reader, LONG));
        }
        let mut held: Vec<(usize, u32)> = Vec::new();
        let mut time = vec![0_usize; connections.len()];
        for round in 0..2000_u32 {
            while let Some((reader, _)) = slots.grant() {
                held.push((reader, round + lasts[reader]));
            }
            held.iter().for_each(|(reader, _)| time[*reader] += 1);
            let ended = held.extract_if(.., |(_, until)| *until <= round).collect::<Vec<_>>();
            for (reader, _) in ended {
                slots.release(&reader);
                slots.request(&reader, LONG);
            }
        }
        // Slots are whole: one of them may have one more.
        let share = 2000 * (CONCURRENT_READS / connections.len());
        prop_assert!(time.iter().all(|time| *time >= share), "{time:?}, and each should have {share}");
    }
}
