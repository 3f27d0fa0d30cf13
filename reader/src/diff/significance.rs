//! Whether a difference of shares is more than chance.
//!
//! A share is a proportion of a sample, so two of them are compared by the two-proportion z-test with a pooled
//! variance. Samples of unequal weight count for as many as Kish's effective sample size says. Of many functions compared at once some differ by chance: the Benjamini-Hochberg procedure (J. R.
//! Statist. Soc. B 57, 1995) keeps the false ones among those that are marked below a rate.

/// Of the differences that are marked, so many may be chance.
const FALSE_DISCOVERY_RATE: f64 = 0.05;

/// The probability that two samples of `n_a` and `n_b` from the same whole differ at least as much as `share_a`
/// and `share_b` do. 1 when there is nothing to compare.
pub(super) fn probability(share_a: f64, n_a: f64, share_b: f64, n_b: f64) -> f64 {
    if n_a == 0.0 || n_b == 0.0 {
        return 1.0;
    }
    let pooled = (share_a * n_a + share_b * n_b) / (n_a + n_b);
    let deviation = (pooled * (1.0 - pooled) * (1.0 / n_a + 1.0 / n_b)).sqrt();
    if deviation <= 0.0 || !deviation.is_finite() {
        return 1.0;
    }
    let z = (share_b - share_a).abs() / deviation;
    libm::erfc(z / std::f64::consts::SQRT_2)
}

/// The probability that two counts of samples, of Poisson processes of one rate, differ at least as much as these do.
pub(super) fn of_counts(a: f64, b: f64) -> f64 {
    if a + b <= 0.0 { 1.0 } else { libm::erfc((b - a).abs() / (2.0 * (a + b)).sqrt()) }
}

/// Which of these probabilities are significant together.
pub(super) fn significant(probabilities: &[f64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
    let step = FALSE_DISCOVERY_RATE / probabilities.len().max(1) as f64;
    let holds = |rank: usize| probabilities[order[rank]] <= step * (rank + 1) as f64;
    let count = (0..order.len()).rev().find(|&rank| holds(rank)).map_or(0, |rank| rank + 1);
    let mut marks = vec![false; probabilities.len()];
    order[..count].iter().for_each(|&place| marks[place] = true);
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_of_the_test() {
        // z = 1.96: 50 of 100 against 63.7 of 100 or so is the border of 5 %.
        let p = probability(0.50, 1000.0, 0.5438, 1000.0);
        assert!((p - 0.05).abs() < 0.001, "{p}");
        assert_eq!(probability(0.3, 500.0, 0.3, 800.0), 1.0);
        assert!(probability(0.1, 1e4, 0.2, 1e4) < 1e-80);
        assert_eq!(probability(0.5, 0.0, 0.5, 10.0), 1.0);
        assert_eq!(probability(1.0, 5.0, 1.0, 10.0), 1.0);
    }

    #[test]
    fn counts_differ_by_chance_too() {
        // z = 1.96 again: 15.68 are the border around 64 in all.
        let p = of_counts(24.16, 39.84);
        assert!((p - 0.05).abs() < 0.001, "{p}");
        assert_eq!((of_counts(0.0, 0.0), of_counts(7.0, 7.0)), (1.0, 1.0));
        assert!(of_counts(0.0, 100.0) < 1e-20);
    }

    #[test]
    fn chance_among_many_is_not_marked() {
        assert_eq!(significant(&[0.04]), [true]);
        // One in twenty is below 5 % by chance.
        let mut many = vec![0.5; 19];
        many.push(0.04);
        assert!(significant(&many).iter().all(|mark| !mark));
        many.push(1e-6);
        assert_eq!(significant(&many).iter().filter(|mark| **mark).count(), 1);
        assert_eq!(
            significant(&[0.01, 0.04, 0.03]),
            [true; 3],
            "the largest that holds takes the others along"
        );
        assert!(significant(&[]).is_empty());
    }
}
