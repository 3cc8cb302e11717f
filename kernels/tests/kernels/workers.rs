//! The worker group under stress.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokenrouter_kernels::cpu::{Cores, WorkerGroup};

#[test]
fn every_part_runs_exactly_once_in_many_short_jobs() {
    for threads in [1, 2, 3, 5] {
        let group = WorkerGroup::new("test", threads).unwrap();
        assert_eq!(group.threads(), threads);
        let counts: Vec<AtomicUsize> = (0..11).map(|_| AtomicUsize::new(0)).collect();
        for job in 0..4000 {
            let parts = job % 12;
            group.run(parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            for (part, count) in counts.iter().enumerate() {
                let expected = usize::from(part < parts);
                assert_eq!(count.swap(0, Ordering::Relaxed), expected, "job {job}, part {part} of {parts}");
            }
        }
    }
}

/// Far more threads than cores, so that the system stops helpers at every point of the protocol;
/// job sizes change, so that a helper which mixes up two jobs runs a wrong part.
#[test]
fn helpers_that_are_held_back_never_mix_up_jobs() {
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let group = WorkerGroup::new("test", 4).unwrap();
                let counts: Vec<AtomicUsize> = (0..40).map(|_| AtomicUsize::new(0)).collect();
                for job in 0..6000 {
                    let parts = 2 + job * 7 % 38;
                    group.run(parts, &|part| {
                        counts[part].fetch_add(1, Ordering::Relaxed);
                    });
                    for (part, count) in counts.iter().enumerate() {
                        let runs = count.swap(0, Ordering::Relaxed);
                        assert_eq!(runs, usize::from(part < parts), "job {job}, part {part} of {parts}");
                    }
                }
            });
        }
    });
}

/// Pauses longer than the spinning time let the helpers park between jobs.
#[test]
fn parked_helpers_wake_up() {
    let group = WorkerGroup::new("test", 3).unwrap();
    for job in 0..200 {
        let sum = AtomicUsize::new(0);
        group.run(64, &|part| {
            // Long enough for helpers to take some parts.
            std::hint::black_box((0..2000).fold(part, |a, b| a.wrapping_mul(31) ^ b));
            sum.fetch_add(part, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 64 * 63 / 2, "job {job}");
        if job % 4 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
    }
}

/// Both threads must take part: each part waits for the other.
#[test]
fn helpers_really_help() {
    let group = WorkerGroup::new("test", 2).unwrap();
    for _ in 0..50 {
        let arrived = AtomicUsize::new(0);
        group.run(2, &|_| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_group_goes_on() {
    for threads in [1, 2, 4] {
        let group = WorkerGroup::new("test", threads).unwrap();
        for round in 0..30 {
            let bad = round % 8;
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                group.run(8, &|part| assert_ne!(part, bad, "part {part} fails"));
            }));
            let payload = result.expect_err("the panic must come through");
            let text = payload.downcast_ref::<String>().map_or("", String::as_str);
            assert!(text.contains("fails"), "{text}");
            let count = AtomicUsize::new(0);
            group.run(8, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 8);
        }
    }
}

#[test]
fn nested_and_concurrent_runs_finish() {
    let group = WorkerGroup::new("test", 3).unwrap();
    let total = AtomicUsize::new(0);
    group.run(4, &|_| {
        group.run(5, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.swap(0, Ordering::Relaxed), 20);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..500 {
                    group.run(6, &|_| {
                        total.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 3 * 500 * 6);
}

#[test]
fn drop_joins_the_helpers_in_any_state() {
    for _ in 0..100 {
        let group = WorkerGroup::new("test", 4).unwrap();
        group.run(4, &|_| {});
    }
    for _ in 0..20 {
        let group = WorkerGroup::new("test", 3).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(200));
        drop(group);
    }
}

/// The threads that ran a job of many parts, each of which waits until `wanted` threads have come, five seconds at most.
fn threads_of_a_job(group: &WorkerGroup, wanted: usize) -> usize {
    let seen = std::sync::Mutex::new(std::collections::HashSet::new());
    let begun = std::time::Instant::now();
    group.run(64, &|_| {
        seen.lock().unwrap().insert(std::thread::current().id());
        while seen.lock().unwrap().len() < wanted && begun.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    });
    seen.into_inner().unwrap().len()
}

#[test]
fn groups_that_share_cores_have_all_of_them_alone_and_their_part_together() {
    let cores = Cores::new(4);
    let groups = [4, 4, 2].map(|threads| WorkerGroup::new("test", threads).unwrap());
    groups.iter().for_each(|group| group.share(cores.clone()));
    let first = groups[0].at_work();
    assert!(first.is_some() && cores.share() == 4);
    assert_eq!(threads_of_a_job(&groups[0], 4), 4);
    let second = groups[1].at_work();
    assert_eq!(cores.share(), 2);
    for group in &groups[..2] {
        assert!(threads_of_a_job(group, 2) <= 2, "more threads than its part");
    }
    let third = groups[2].at_work();
    assert_eq!(cores.share(), 2, "four cores by three, rounded up");
    drop((second, third));
    assert_eq!(threads_of_a_job(&groups[0], 4), 4, "helpers that had no core come back");
    assert!(WorkerGroup::new("test", 2).unwrap().at_work().is_none(), "a group that shares nothing");
}

#[test]
fn one_shared_core_leaves_every_part_to_the_caller() {
    let group = WorkerGroup::new("test", 3).unwrap();
    group.share(Cores::new(1));
    let _at_work = group.at_work();
    assert_eq!(threads_of_a_job(&group, 1), 1);
}
