// report/pictures/loss_chart.h: the loss over the steps as a picture.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/page/svg_writer.h"

namespace smp::report {

/// A value worth comparing with, drawn as a dashed line.
struct Baseline {
  double value = 0;
  std::string name;
};

struct LossChart {
  std::vector<Point>
      points;  ///< (step, loss), in order of steps; others than finite ones are marked
  std::string title = "Loss";
  std::string unit;  ///< behind "loss" on the axis: "nats per byte"
  std::optional<Baseline> baseline;
};

/// Returns an SVG file: the loss of every step as a thin line, its running mean as a thick one.
std::string draw_loss(const LossChart& chart);

/// The loss of one of several runs.
struct LossCurve {
  std::string name;
  std::vector<Point> points;  ///< as those of LossChart
};

/// Returns an SVG file: the losses of some runs in one picture, in colours that a legend names; of
/// a run with 20 steps or more its running mean, above the loss of every step.
/// @param unit  behind "loss" on the axis
std::string draw_losses(const std::vector<LossCurve>& curves, const std::string& title,
                        const std::string& unit);

}  // namespace smp::report
