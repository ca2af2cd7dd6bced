// Not a test: fits the simulated card to what was recorded on an H200, and prints parameters and
// residuals. Usage: fit_simulated tests/data/h200 > results/tables/simulated_fit_h200.txt
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "sensors/simulated/gpu.h"

namespace {

using dfa::simulated::CardParameters;
using dfa::simulated::Gpu;

std::vector<std::vector<double>> read_csv(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<double>> rows;
  std::string line, cell;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    rows.emplace_back();
    while (std::getline(cells, cell, ',')) {
      rows.back().push_back(cell.empty() ? std::nan("") : std::stod(cell));
    }
  }
  return rows;
}

// Nelder and Mead's simplex on logarithms of positive parameters, started anew from its best point.
using Parameters = std::vector<double>;
using Cost = std::function<double(const Parameters&)>;

Parameters minimise(const Cost& cost, const Parameters& start, int evaluations) {
  const std::size_t n = start.size();
  const auto real = [](Parameters logs) {
    for (double& x : logs) x = std::exp(x);
    return logs;
  };
  Parameters best = start;
  for (double& x : best) x = std::log(x);
  for (int restart = 0; restart < 4; ++restart) {
    struct Point {
      Parameters at;
      double cost;
    };
    std::vector<Point> simplex{{best, cost(real(best))}};
    for (std::size_t i = 0; i < n; ++i) {
      Parameters at = best;
      at[i] += restart % 2 == 0 ? 0.15 : -0.1;
      simplex.push_back({at, cost(real(at))});
    }
    const auto towards = [&](const Parameters& centre, const Parameters& worst, double factor) {
      Parameters at(n);
      for (std::size_t i = 0; i < n; ++i) at[i] = centre[i] + factor * (worst[i] - centre[i]);
      return Point{at, cost(real(at))};
    };
    for (int used = 0; used < evaluations / 4; ++used) {
      std::sort(simplex.begin(), simplex.end(),
                [](const Point& a, const Point& b) { return a.cost < b.cost; });
      Parameters centre(n, 0);
      for (std::size_t k = 0; k < n; ++k) {
        for (std::size_t i = 0; i < n; ++i) centre[i] += simplex[k].at[i] / static_cast<double>(n);
      }
      Point& worst = simplex.back();
      const Point reflected = towards(centre, worst.at, -1);
      if (reflected.cost < simplex.front().cost) {
        const Point further = towards(centre, worst.at, -2);
        worst = further.cost < reflected.cost ? further : reflected;
      } else if (reflected.cost < simplex[n - 1].cost) {
        worst = reflected;
      } else {
        const Point nearer = towards(centre, worst.at, 0.5);
        if (nearer.cost < worst.cost) {
          worst = nearer;
        } else {
          for (std::size_t k = 1; k <= n; ++k) {
            simplex[k] = towards(simplex[0].at, simplex[k].at, 0.5);
          }
        }
      }
    }
    best = std::min_element(simplex.begin(), simplex.end(), [](const Point& a, const Point& b) {
             return a.cost < b.cost;
           })->at;
  }
  return real(best);
}

double square(double x) { return x * x; }

double rms(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum / static_cast<double>(std::max<std::size_t>(1, values.size())));
}

// Levers: power and rate of one kernel with fewer SMs or with gaps.
constexpr double kHeldShare = 0.982;  // of the limit: what the card draws on average at its cap

struct Steady {
  double power_w, tflops, clock_hz;
};

Steady steady(const CardParameters& card, double dynamic_w, double tflops, double sms, double duty,
              double temp_c) {
  const double share = work_share(card, sms) * duty;
  double clock = card.clock_max_hz;
  const double held = kHeldShare * card.limit_w;
  while (clock > card.clock_min_hz && board_power(card, dynamic_w * share, clock, temp_c) > held) {
    clock -= 1e6;
  }
  return {board_power(card, dynamic_w * share, clock, temp_c),
          tflops * share * clock / card.clock_max_hz, clock};
}

double temperature_of(const std::vector<double>& row) {
  return std::isnan(row[6]) ? 42 + 0.05 * (row[2] - 125) : row[6];  // not recorded: about that
}

void fit_levers(CardParameters& card, const std::vector<std::vector<double>>& rows) {
  const auto with = [&](const Parameters& p) {
    CardParameters c = card;
    c.leakage_w_per_c = p[2];
    c.contention = p[3];
    c.voltage_slope = p[4];
    return c;
  };
  // Power by the mean of field 186 where there is one: the counter's windows were not aligned.
  const auto power_of = [](const std::vector<double>& row) {
    return std::isnan(row[3]) ? row[2] : std::min(row[3], 690.0);
  };
  const Cost cost = [&](const Parameters& p) {
    const CardParameters c = with(p);
    double sum = square((p[2] - 0.4) / 0.1);  // leakage: what cooling down shows
    for (const auto& row : rows) {
      const Steady s = steady(c, p[0], p[1], row[0], row[1], temperature_of(row));
      const double tolerance_w = power_of(row) > 600 ? 25 : 8;  // near the cap the clock hunts
      sum += square((s.power_w - power_of(row)) / tolerance_w);
      sum += square((s.tflops / row[4] - 1) / 0.015);
    }
    return sum;
  };
  const Parameters p = minimise(cost, {765, 500, 0.4, 0.05, 1.4}, 4000);
  card = with(p);
  fmt::print("# kernel: dynamic_w {:.1f}, tflops {:.1f} at the highest clock\n", p[0], p[1]);
  fmt::print("{:>4} {:>5} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}\n", "sm", "duty", "W", "model",
             "TFLOP/s", "model", "MHz", "model");
  std::vector<double> watts, rates;
  for (const auto& row : rows) {
    const Steady s = steady(card, p[0], p[1], row[0], row[1], temperature_of(row));
    fmt::print("{:>4} {:>5} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>7} {:>7.0f}\n", row[0], row[1],
               power_of(row), s.power_w, row[4], s.tflops,
               std::isnan(row[5]) ? "-" : fmt::format("{:.0f}", row[5]), s.clock_hz / 1e6);
    watts.push_back(s.power_w - power_of(row));
    rates.push_back(100 * (s.tflops / row[4] - 1));
  }
  fmt::print("# root mean square residuals: {:.1f} W, {:.1f} % of TFLOP/s\n\n", rms(watts),
             rms(rates));
}

// Step response: what the sensors showed after each tick of the energy counter.
struct Ticks {
  std::vector<double> power_w, average_w, temp_c,
      clock_mhz;  // power between this tick and the last
};

constexpr double kFirstTick = 0.994;  // of the record, just before the load
constexpr int kTicks = 55;
constexpr double kLoadSeconds = 3.0;

Ticks recorded_ticks(const std::vector<std::vector<double>>& rows) {
  Ticks ticks;
  double before = 0;
  for (int k = 0; k < kTicks; ++k) {
    const double time = kFirstTick + 0.09985 * k + 0.08;
    const auto row =
        std::find_if(rows.rbegin(), rows.rend(), [&](const auto& r) { return r[0] <= time; });
    if (k > 0) {
      ticks.power_w.push_back(((*row)[5] - before) / 0.09985);
      ticks.average_w.push_back((*row)[2]);
      ticks.temp_c.push_back((*row)[3]);
      ticks.clock_mhz.push_back((*row)[4]);
    }
    before = (*row)[5];
  }
  return ticks;
}

Ticks simulated_ticks(const CardParameters& card, double dynamic_w, double delay_s) {
  Gpu gpu(card, 1);
  Ticks ticks;
  double before = gpu.energy_j();
  double now = 0;
  const auto until = [&](double time) {
    gpu.advance(time - now);
    now = time;
  };
  const double begin = delay_s, end = kLoadSeconds + 0.006;
  for (int k = 1; k < kTicks; ++k) {
    const double tick = 0.1 * k;
    for (const auto& [at, watts] : {std::pair{begin, dynamic_w}, std::pair{end, 0.0}}) {
      if (at > now && at <= tick) {
        until(at);
        gpu.set_load({.dynamic_w = watts, .work_per_s = 0});
      }
    }
    until(tick);
    ticks.power_w.push_back((gpu.energy_j() - before) / 0.1);
    before = gpu.energy_j();
    ticks.average_w.push_back(gpu.average_power()->value);
    ticks.temp_c.push_back(gpu.temperature()->value);
    ticks.clock_mhz.push_back(gpu.clock_hz() / 1e6);
  }
  return ticks;
}

// A steady load at the cap heats this card to 77 °C, idle with a context to 40 °C.
void share_resistance(CardParameters& card) {
  const double total = (77.5 - 40.5) / (kHeldShare * card.limit_w - card.idle_w);
  card.inlet_c = 40.5 - total * card.idle_w;
  card.poles[2].c_per_w = total - card.poles[0].c_per_w - card.poles[1].c_per_w;
}

// Once the mean of a second has reached the limit the clock hunts; its phase is chance, its mean
// and deviation are not.
bool hunts(std::size_t tick) { return tick >= 10 && tick < 29; }

struct Spread {
  double mean = 0, deviation = 0, least = 1e9;
};

Spread hunting_power(const Ticks& ticks) {
  Spread spread;
  double sum = 0, squares = 0, count = 0;
  for (std::size_t k = 0; k < ticks.power_w.size(); ++k) {
    if (k > 2 && k < 29) spread.least = std::min(spread.least, ticks.power_w[k]);
    if (!hunts(k)) continue;
    sum += ticks.power_w[k];
    squares += square(ticks.power_w[k]);
    ++count;
  }
  spread.mean = sum / count;
  spread.deviation = std::sqrt(squares / count - square(spread.mean));
  return spread;
}

double hunting_cost(const Ticks& model, const Ticks& truth) {
  const Spread a = hunting_power(model), b = hunting_power(truth);
  return square((a.mean - b.mean) / 1.5) + square((a.deviation - b.deviation) / 3) +
         square((a.least - b.least) / 20);
}

void fit_step(CardParameters& card, const std::vector<std::vector<double>>& rows) {
  const Ticks truth = recorded_ticks(rows);
  const auto with = [&](const Parameters& p) {
    CardParameters c = card;
    c.voltage_floor = std::min(p[2], 0.95);
    c.poles[0] = {p[3], p[4]};
    c.poles[1] = {p[5], p[6]};
    c.burst = p[7];
    c.second_reference = p[8];
    c.second_gain = p[9];
    c.cap_filter_s = std::max(p[10], 1e-3);
    c.cap_gain_hz_per_w = p[11];
    c.cap_down_hz = p[12];
    c.cap_up_hz = p[13];
    share_resistance(c);
    return c;
  };
  const Cost cost = [&](const Parameters& p) {
    const CardParameters c = with(p);
    if (p[1] > 0.09) return 1e9;
    const Ticks s = simulated_ticks(c, p[0], p[1]);
    double sum = hunting_cost(s, truth);
    for (std::size_t k = 0; k < truth.power_w.size(); ++k) {
      sum += square((s.temp_c[k] - truth.temp_c[k]) / 1.5);
      if (hunts(k)) continue;
      sum += square((s.power_w[k] - truth.power_w[k]) / 20);
      sum += square((s.clock_mhz[k] - truth.clock_mhz[k]) / 60);
    }
    return sum;
  };
  Parameters p;
  for (const double gain : {3.0, 5.0, 10.0}) {
    for (const double reference : {0.98, 0.99}) {
      for (const double rate : {0.5, 1.0}) {
        const Parameters found = minimise(cost,
                                          {1000, 0.03, 0.86, 0.024, 0.07, 0.01, 0.4, 1.05,
                                           reference, gain, 0.02, 3e5, rate * 6e7, rate * 3e7},
                                          4000);
        if (p.empty() || cost(found) < cost(p)) p = found;
      }
    }
  }
  card = with(p);
  fmt::print("# matrix product: dynamic_w {:.0f} at the highest clock, begins {:.0f} ms late\n",
             p[0], 1000 * p[1]);
  fmt::print("{:>5} {:>7} {:>7} {:>8} {:>8} {:>5} {:>5} {:>6} {:>6}\n", "s", "W", "model", "1-s W",
             "model", "C", "model", "MHz", "model");
  const Ticks s = simulated_ticks(card, p[0], p[1]);
  std::vector<double> watts, temps, clocks;
  for (std::size_t k = 0; k < truth.power_w.size(); ++k) {
    fmt::print("{:>5.1f} {:>7.1f} {:>7.1f} {:>8.1f} {:>8.1f} {:>5.0f} {:>5.0f} {:>6.0f} {:>6.0f}\n",
               0.1 * static_cast<double>(k + 1), truth.power_w[k], s.power_w[k], truth.average_w[k],
               s.average_w[k], truth.temp_c[k], s.temp_c[k], truth.clock_mhz[k], s.clock_mhz[k]);
    temps.push_back(s.temp_c[k] - truth.temp_c[k]);
    if (hunts(k)) continue;
    watts.push_back(s.power_w[k] - truth.power_w[k]);
    clocks.push_back(s.clock_mhz[k] - truth.clock_mhz[k]);
  }
  fmt::print(
      "# root mean square residuals outside 1.1 to 2.9 s: {:.1f} W in 100 ms, {:.0f} MHz; of all: "
      "{:.1f} C\n",
      rms(watts), rms(clocks), rms(temps));
  const Spread a = hunting_power(truth), b = hunting_power(s);
  fmt::print(
      "# 1.1 to 2.9 s, hunting: mean {:.1f} W (model {:.1f}), deviation {:.1f} ({:.1f}), least "
      "{:.0f} ({:.0f})\n\n",
      a.mean, b.mean, a.deviation, b.deviation, a.least, b.least);
}

void print(const CardParameters& card) {
  fmt::print(
      "leakage_w_per_c {:.3g}\nvoltage_floor {:.3g}\nvoltage_slope {:.3g}\ncontention {:.3g}\n",
      card.leakage_w_per_c, card.voltage_floor, card.voltage_slope, card.contention);
  fmt::print("burst {:.4g}\nsecond_reference {:.4g}\nsecond_gain {:.3g}\ncap_filter_s {:.3g}\n",
             card.burst, card.second_reference, card.second_gain, card.cap_filter_s);
  fmt::print("cap_gain_hz_per_w {:.3g}\ncap_down_hz {:.3g}\ncap_up_hz {:.3g}\n",
             card.cap_gain_hz_per_w, card.cap_down_hz, card.cap_up_hz);
  for (const auto& pole : card.poles)
    fmt::print("pole {:.3g} C/W {:.3g} s\n", pole.c_per_w, pole.time_s);
  fmt::print("inlet_c {:.3g}\n", card.inlet_c);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "tests/data/h200";
  CardParameters card;
  card.voltage_floor = 0.8;  // a start that does not depend on the last fit
  fit_levers(card, read_csv(folder + "/levers.csv"));
  fit_step(card, read_csv(folder + "/step_response.csv"));
  print(card);
}
