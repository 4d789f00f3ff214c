"""Fits main effects by least squares, and computes the shares that they explain, for bench/factors."""
import numpy as np

DRAWS = 4000  # number of bootstrap samples


class Fit:
    """Fits y, one number for each row of x, as a sum of main effects."""

    def __init__(self, x, y, seed=1, draws=DRAWS):
        self.x, self.y = x, np.asarray(y)
        n, p = x.shape
        self.inverse = np.linalg.pinv(x)
        self.beta = self.inverse @ self.y
        self.residuals = self.y - x @ self.beta
        self.total = float(((self.y - self.y.mean()) ** 2).sum())
        self.unexplained = float((self.residuals ** 2).sum())
        self.left = n - p  # degrees of freedom
        self.leverage = np.einsum("ij,ji->i", x, self.inverse)
        # Wild bootstrap: leave-one-out residuals get random signs.  It assumes neither equal variances nor a
        # distribution.
        errors = self.residuals / np.maximum(1 - self.leverage, 0.02)
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, n))
        self.errors = (signs * errors) @ self.inverse.T

    def interval(self, contrast):
        """Returns the value of a contrast, with a 95 % interval."""
        contrast = np.asarray(contrast)
        value = float(contrast @ self.beta)
        low, high = np.quantile(self.errors @ contrast, [0.025, 0.975])
        return {"median": value, "low": value - float(high), "high": value - float(low)}

    def share(self, part):
        """Returns two shares of the sum of squares: the share that only the columns `part` explain (type II), and the average share of
        the same number of columns without any effect."""
        others = np.delete(self.x, np.r_[part], axis=1)
        without = self.y - others @ (np.linalg.pinv(others) @ self.y)
        columns = part.stop - part.start
        return {"share": (float((without ** 2).sum()) - self.unexplained) / self.total,
                "by_chance": columns * self.unexplained / self.left / self.total}

    def noise(self, variance, repeats):
        """Returns the share of the sum of squares that noise explains.  `variance`: of a single run.  `repeats`: runs of each row."""
        return min(float(variance * ((1 - self.leverage) / np.asarray(repeats)).sum()), self.unexplained) / self.total


def noise_variance(groups):
    """Returns the variance of a single run, from repeated runs, or None without repeats."""
    squares = sum(float(((np.array(g) - np.mean(g)) ** 2).sum()) for g in groups)
    degrees = sum(len(g) - 1 for g in groups)
    return squares / degrees if degrees else None
