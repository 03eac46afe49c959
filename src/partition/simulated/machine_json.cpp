// partition/simulated/machine_json.cpp: links that several pairs of stages have are written once.
#include "partition/simulated/machine_json.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "config/config_keys.h"
#include "partition/simulated/json_numbers.h"

namespace smp::partitioning {
namespace {

using base::Json;
using base::json_element;
using base::json_member;
using simulate::Machine;

Json link_to_json(const Machine::Link& link) {
  return {{"latency", link.latency}, {"bytes_per_second", link.bytes_per_second}};
}

/// Adds the places of the stages (node, socket, port) and the links between them.
void add_places(Json& json, const Machine& machine) {
  Json places = Json::array();
  for (const auto& place : machine.places) {
    places.push_back({place.node, place.socket, place.port});
  }
  json["places"] = places;
  json["across_sockets"] = link_to_json(machine.across_sockets);
  json["network"] = link_to_json(machine.network);
}

/// Returns the links that differ, each once, and which of them each pair of stages has.
Json pairs_to_json(const std::vector<Machine::Link>& pairs) {
  std::vector<Machine::Link> kinds;
  Json links = Json::array(), numbers = Json::array();
  for (const auto& link : pairs) {
    auto kind = std::find(kinds.begin(), kinds.end(), link);
    if (kind == kinds.end()) {
      links.push_back(link_to_json(link));
      kind = kinds.insert(kinds.end(), link);
    }
    numbers.push_back(kind - kinds.begin());
  }
  return {{"links", links}, {"pairs", numbers}};
}

bool is_fit(const Machine::Host& host, int stages) {
  return is_from(host.cores, 1e-6, 1e6) &&
         std::all_of(host.stages.begin(), host.stages.end(),
                     [&](int stage) { return stage >= 0 && stage < stages; });
}

bool is_fit(const Machine::Link& link) {
  return is_from(link.latency, 0, kMostSeconds) && link.bytes_per_second >= 1;
}

void require_sensible_places(const Machine& machine, const std::string& name) {
  const auto fits = [&](std::size_t count) {
    return count == 0 || count == static_cast<std::size_t>(machine.stages);
  };
  SMP_REQUIRE(fits(machine.devices.size()) && fits(machine.places.size()) &&
                  fits(machine.direct_links.size()),
              name, ": \"devices\", \"places\" and \"direct_links\" must be of ", machine.stages,
              " stages, or none");
  for (const double link : machine.direct_links) {
    SMP_REQUIRE(is_from(link, 0, 1e15), name, ": a direct link of ", link, " bytes/s");
  }
  const bool placed = std::all_of(machine.places.begin(), machine.places.end(), [](auto& place) {
    return place.node >= 0 && place.node < base::kMostStages && place.port >= 0 &&
           place.port < base::kMostStages;
  });
  SMP_REQUIRE(placed && is_fit(machine.across_sockets) && is_fit(machine.network), name,
              ": a place of \"places\", or a link, is out of range");
}

void require_sense(const Machine& machine, const std::string& name) {
  SMP_REQUIRE(machine.stages >= 1 && machine.stages <= base::kMostStages, name, ": a machine of ",
              machine.stages, " stages, expected at least 1 and at most ", base::kMostStages);
  const bool speeds_fit = (machine.speeds.empty() ||
                           machine.speeds.size() == static_cast<std::size_t>(machine.stages)) &&
                          std::all_of(machine.speeds.begin(), machine.speeds.end(),
                                      [](double speed) { return is_from(speed, 1e-6, 1e6); });
  SMP_REQUIRE(speeds_fit, name, ": \"speeds\" must be ", machine.stages,
              " numbers from 1e-6 to 1e6, or none");
  SMP_REQUIRE(is_from(machine.latency, 0, kMostSeconds) &&
                  is_from(machine.handling, 0, kMostSeconds) && machine.bytes_per_second >= 1,
              name, ": a message takes ", machine.latency, " s, ", machine.handling,
              " s of its threads and ", machine.bytes_per_second, " bytes/s");
  for (const Machine::Host& host : machine.oversubscribed) {
    SMP_REQUIRE(is_fit(host, machine.stages), name, ": a host of \"oversubscribed\" has ",
                host.cores, " cores, or stages beyond ", machine.stages - 1);
  }
  require_sensible_places(machine, name);
}

Machine::Link link_from_json(const Json& json, const std::string& name) {
  return {json_member<double>(json, "latency", name),
          json_member<double>(json, "bytes_per_second", name)};
}

void read_places(Machine& machine, const Json& json, const std::string& name) {
  for (const Json& place : json_member<std::vector<Json>>(json, "places", name)) {
    require_numbers(place, 3, "a place", name);
    machine.places.push_back({json_element<int>(place, 0, name), json_element<int>(place, 1, name),
                              json_element<int>(place, 2, name)});
  }
  machine.across_sockets = link_from_json(json_member<Json>(json, "across_sockets", name), name);
  machine.network = link_from_json(json_member<Json>(json, "network", name), name);
}

/// @throws UsageError  a link out of range, or one that is not there; not one for each pair
std::vector<Machine::Link> pairs_from_json(const Json& json, int stages, const std::string& name) {
  std::vector<Machine::Link> links, pairs;
  for (const Json& link : json_member<std::vector<Json>>(json, "links", name)) {
    links.push_back(link_from_json(link, name));
    SMP_REQUIRE(is_fit(links.back()), name, ": a link of \"within_nodes\" is out of range");
  }
  for (const int number : json_member<std::vector<int>>(json, "pairs", name)) {
    SMP_REQUIRE(number >= 0 && number < static_cast<int>(links.size()), name,
                ": \"within_nodes\" has no link ", number);
    pairs.push_back(links[static_cast<std::size_t>(number)]);
  }
  const auto expected = static_cast<std::size_t>(stages) * static_cast<std::size_t>(stages);
  SMP_REQUIRE(pairs.size() == expected, name, ": \"within_nodes\" has ", pairs.size(),
              " pairs, expected ", expected, " of ", stages, " stages");
  return pairs;
}

}  // namespace

Json machine_to_json(const Machine& machine) {
  Json hosts = Json::array();
  for (const auto& host : machine.oversubscribed) {
    hosts.push_back({{"stages", host.stages}, {"cores", host.cores}});
  }
  Json json = {{"stages", machine.stages},
               {"speeds", machine.speeds},
               {"oversubscribed", hosts},
               {"latency", machine.latency},
               {"bytes_per_second", machine.bytes_per_second},
               {"handling", machine.handling},
               {"patient", machine.patient},
               {"promised_outputs", machine.promised_outputs}};
  if (!machine.devices.empty()) json["devices"] = machine.devices;
  if (!machine.direct_links.empty()) json["direct_links"] = machine.direct_links;
  if (!machine.pairs.empty()) json["within_nodes"] = pairs_to_json(machine.pairs);
  if (!machine.places.empty()) add_places(json, machine);
  return json;
}

Machine machine_from_json(const Json& json, const std::string& name) {
  Machine machine;
  machine.stages = json_member<int>(json, "stages", name);
  machine.speeds = json_member<std::vector<double>>(json, "speeds", name);
  for (const Json& host : json_member<std::vector<Json>>(json, "oversubscribed", name)) {
    machine.oversubscribed.push_back({json_member<std::vector<int>>(host, "stages", name),
                                      json_member<double>(host, "cores", name)});
  }
  machine.latency = json_member<double>(json, "latency", name);
  machine.bytes_per_second = json_member<double>(json, "bytes_per_second", name);
  machine.handling = json_member<double>(json, "handling", name);
  machine.patient = json_member<bool>(json, "patient", name);
  machine.promised_outputs = json_member<bool>(json, "promised_outputs", name);
  if (json.contains("devices")) {
    machine.devices = json_member<std::vector<std::string>>(json, "devices", name);
  }
  if (json.contains("direct_links")) {
    machine.direct_links = json_member<std::vector<double>>(json, "direct_links", name);
  }
  if (json.contains("places")) read_places(machine, json, name);
  require_sense(machine, name);
  if (json.contains("within_nodes")) {
    machine.pairs =
        pairs_from_json(json_member<Json>(json, "within_nodes", name), machine.stages, name);
  }
  return machine;
}

}  // namespace smp::partitioning
