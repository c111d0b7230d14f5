"""Derives the polynomials of math.h: weighted minimax fits, coefficients rounded to the target format.

    pip install mpmath && python minimax.py [name ...]

Each entry of FITS gives the function, the interval, the degree and the weight that turns an error of the polynomial
into a relative error of the result. Coefficients are rounded one at a time, lowest power first, and the rest is
fitted again, so that rounding costs almost nothing. Output: one line per coefficient, lowest power first.
"""

import struct
import sys

from mpmath import atan, cos, erfc, exp, expm1, linspace, log, log1p, lu_solve, matrix, mp, mpf, pi, sin, sqrt, tanh

mp.dps = 70


def to_float(c):
    return mpf(struct.unpack("f", struct.pack("f", float(c)))[0])


def to_double(c):
    return mpf(float(c))


def minimax(f, lo, hi, first, degree, weight, points, rounds):
    """Coefficients of x^first..x^degree with nearly the least maximum of |p - f| * weight, and that maximum.

    Lawson's iteration on least squares: unlike Remez's exchange it does not mind an interval with 0 inside, where all
    remaining powers vanish.
    """
    n = degree + 1 - first
    xs = [(lo + hi) / 2 - (hi - lo) / 2 * cos(pi * (i + mpf(1) / 2) / points) for i in range(points)]
    fs, ws = [f(x) for x in xs], [weight(x) for x in xs]
    rows = [[w * x**p for p in range(first, degree + 1)] for x, w in zip(xs, ws, strict=True)]
    goal = [fx * w for fx, w in zip(fs, ws, strict=True)]
    mass = [mpf(1) / points] * points
    best = None
    for _ in range(rounds):
        a, b = matrix(n, n), matrix(n, 1)
        for row, g, m in zip(rows, goal, mass, strict=True):
            scaled = [m * r for r in row]
            for i in range(n):
                b[i] += scaled[i] * g
                for j in range(i, n):
                    a[i, j] += scaled[i] * row[j]
        for i in range(n):
            for j in range(i):
                a[i, j] = a[j, i]
        coefficients = list(lu_solve(a, b))
        errors = [
            abs(sum(c * r for c, r in zip(coefficients, row, strict=True)) - g)
            for row, g in zip(rows, goal, strict=True)
        ]
        worst = max(errors)
        if best is None or worst < best[1]:
            best = coefficients, worst
        mass = [m * e for m, e in zip(mass, errors, strict=True)]
        total = sum(mass)
        mass = [m / total for m in mass]
    return best


def fit(f, lo, hi, degree, weight, rounding, pair=False):
    lo, hi = mpf(lo), mpf(hi)
    fixed = []

    def rest(x):
        return f(x) - sum(c * x**k for k, c in enumerate(fixed))

    for first in range(degree + 1):
        points = 6 * (degree + 2 - first) + 20
        coefficients, worst = minimax(rest, lo, hi, first, degree, weight, points, 12)
        if first == 0:
            print(f"  unrounded error 2^{float(log(worst, 2)):.2f}")
        c = coefficients[0]
        fixed.append(rounding(c) + (rounding(c - rounding(c)) if pair and first == 0 else 0))
    worst = max(abs(rest(x)) * weight(x) for x in linspace(lo + (hi - lo) * mpf("1e-6"), hi, 801))
    print(f"  rounded error   2^{float(log(worst, 2)):.2f}")
    suffix = "f" if rounding is to_float else ""
    if pair:  # the constant term is a sum of two
        fixed.insert(1, fixed[0] - rounding(fixed[0]))
    for c in fixed:
        mantissa, exponent = float(rounding(c)).hex().split("p")
        print(f"  {mantissa.rstrip('0')}p{exponent}{suffix},")


LN2 = log(2)
ROOT = sqrt(mpf(2))


def exp_tail(r):  # e^r = 1 + r + r^2 tail(r)
    return (expm1(r) - r) / r**2 if r else mpf(1) / 2


def log_tail(f):  # log(1 + f) = f + f^2 tail(f)
    return (log1p(f) - f) / f**2 if abs(f) > mpf("1e-30") else -mpf(1) / 2


def atanh_tail(u):  # atanh(s) = s + s u (1/3 + u tail(u)), u = s^2
    s = sqrt(u)
    return ((log((1 + s) / (1 - s)) / (2 * s) - 1) / u - mpf(1) / 3) / u if u > mpf("1e-15") else mpf(1) / 5


def erf_exponent(a):  # 1 - erf(a) = e^-(a + a q(a))
    return -log(erfc(a)) / a - 1 if a else 2 / sqrt(pi) - 1


def erf_small(u):  # erf(x) = x + x p(x^2)
    x = sqrt(u)
    return (1 - erfc(x)) / x - 1 if u > mpf("1e-30") else 2 / sqrt(pi) - 1


def erfcx_of(k):  # (a + k) e^(a^2) erfc(a) as a function of t = (a - k) / (a + k)
    def g(t):
        a = k * (1 + t) / (1 - t)
        return (a + k) * exp(a * a) * erfc(a)

    return g


def atan_tail(u):  # atan(t) = t + t u tail(u), u = t^2
    t = sqrt(u)
    return (atan(t) / t - 1) / u if u > mpf("1e-30") else -mpf(1) / 3


def sin_tail(u):  # sin(r) = r + r u tail(u), u = r^2
    r = sqrt(u)
    return (sin(r) / r - 1) / u if u > mpf("1e-20") else -mpf(1) / 6


def cos_tail(u):  # cos(r) = 1 - u / 2 + u^2 tail(u), u = r^2
    return (cos(sqrt(u)) - 1 + u / 2) / u**2 if u > mpf("1e-15") else mpf(1) / 24


# Forms for CUDA alone.


def exp2_tail(f):  # 2^f = 1 + f tail(f)
    return (2**f - 1) / f if f else LN2


def tanh_tail(u):  # tanh(x) = x + x u tail(u), u = x^2
    x = sqrt(u)
    return (tanh(x) / x - 1) / u if u > mpf("1e-20") else -mpf(1) / 3


def log2_erfc(a):
    return log(erfc(a)) / LN2


def normal_tail(a):  # Phi(-a)
    return erfc(a / ROOT) / 2


def normal_near(u):  # Phi(x) = 1/2 + x p(x^2)
    x = sqrt(u)
    return (mpf(1) / 2 - normal_tail(x)) / x if u > mpf("1e-30") else 1 / sqrt(2 * pi)


def log2_normal_tail(a):
    return log(normal_tail(a)) / LN2


def normal_weight(a):  # for the error beside 1, and no more than a hundredth of what is left far out
    return max(normal_tail(a), 100 * mpf(2) ** -26) * LN2


EXP = (exp_tail, -LN2 / 2 * mpf("1.001"), LN2 / 2 * mpf("1.001"))


def exp_weight(r):
    return r**2 / abs(expm1(r)) if r else mpf(0)


LOG = (log_tail, 1 / ROOT - 1, ROOT - 1)


def log_weight(f):
    return f**2 / abs(log1p(f)) if f else mpf(0)


def erf_weight(a):
    return a * erfc(a) / (1 - erfc(a)) if a else mpf(1)


def tanh_weight(u):
    return u * sqrt(u) / tanh(sqrt(u)) if u else mpf(0)


TRIG_MAX_F = mpf(1)  # the reduction of huge arguments leaves up to 0.98
TRIG_MAX_D = (pi * mpf("0.26")) ** 2

FITS = {
    "exp_tail_f": (*EXP, 4, exp_weight, to_float),
    "exp_tail_d": (*EXP, 10, exp_weight, to_double),
    "exp_tail_short": (*EXP, 5, exp_weight, to_double),
    "log_tail_f": (*LOG, 8, log_weight, to_float),
    "log_tail_d": (*LOG, 20, log_weight, to_double),
    "log_tail_short": (*LOG, 11, log_weight, to_double),
    "atanh_tail_d": (atanh_tail, 0, (3 - 2 * ROOT) ** 2, 8, lambda u: u**2, to_double),
    "erf_exponent_f": (erf_exponent, 0, 3.93, 8, erf_weight, to_float),
    "erf_small_f": (erf_small, 0, mpf("0.26"), 4, lambda u: mpf(1), to_float),
    "erf_small_d": (erf_small, 0, 1, 11, lambda u: mpf(1), to_double),
    "erfcx_f": (erfcx_of(2), mpf("-0.6"), mpf("0.672"), 9, lambda t: 1 / erfcx_of(2)(t), to_float, True),
    "erfcx_d": (erfcx_of(2), mpf("-0.601"), mpf("0.864"), 22, lambda t: 1 / erfcx_of(2)(t), to_double, True),
    "atan_tail_f": (atan_tail, 0, 1, 8, lambda u: u, to_float),
    "atan_tail_d": (atan_tail, 0, 1, 20, lambda u: u, to_double),
    "sin_tail_f": (sin_tail, 0, TRIG_MAX_F, 3, lambda u: u, to_float),
    "cos_tail_f": (cos_tail, 0, TRIG_MAX_F, 3, lambda u: u**2, to_float),
    "sin_tail_d": (sin_tail, 0, TRIG_MAX_D, 5, lambda u: u, to_double),
    "cos_tail_d": (cos_tail, 0, TRIG_MAX_D, 5, lambda u: u**2, to_double),
    "exp2_scaled": (exp2_tail, -0.5005, 0.5005, 5, lambda f: abs(f) / 2**f, to_float),  # behind the constant 1
    "tanh_tail": (tanh_tail, 0, mpf("0.81"), 5, tanh_weight, to_float),
    "erf_near": (erf_small, 0, mpf("0.92") ** 2, 5, lambda u: 1 / (1 + erf_small(u)), to_float),
    "log2_erfc": (log2_erfc, "0.92", 3.95, 5, lambda a: erfc(a) * LN2 / (1 - erfc(a)), to_float),
    "normal_near": (normal_near, 0, mpf("1.36") ** 2, 5, sqrt, to_float),
    "log2_normal_tail": (log2_normal_tail, "1.36", 5.4, 5, normal_weight, to_float),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FITS:
        print(name)
        fit(*FITS[name])
