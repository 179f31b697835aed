// shoal-prototype HOST PORT FLEET ID CA CERTIFICATE TRUST DATA STATE: a device in C++ that carries out plans of training and evaluation.
//
// It measures what such a client takes, and is no client: benchmarks/RESULTS.md, 'A client in C++', says what it lacks.
#include <mosquitto.h>
#include <mqtt_protocol.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <deque>
#include <optional>

#include "training.h"

namespace {

constexpr int kSession = 7 * 24 * 3600, kKeepAlive = 30, kHeartbeat = 60, kPatience = 3;
volatile std::sig_atomic_t stopped = 0;

double clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Client {
 public:
  explicit Client(char** words)
      : host_(words[1]), port_(std::atoi(words[2])), fleet_(words[3]), id_(words[4]), ca_(words[5]), certificate_(words[6]),
        root_(read_trust(words[7])), train_(std::string(words[8]) + "/train.npz"), test_(std::string(words[8]) + "/test.npz"), state_(words[9]) {
    mkdir(state_.c_str(), 0700);
  }

  void run() {
    connect();
    double status_s = clock_s();
    while (!stopped) {
      pump(1000);
      while (!inbox_.empty() && !stopped) {
        const auto [topic, payload] = std::move(inbox_.front());
        inbox_.pop_front();
        try {
          receive(topic, payload);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "ignored: topic=%s: %s\n", topic.c_str(), error.what());
        }
      }
      if (clock_s() - status_s > kHeartbeat) {
        status_s = clock_s();
        publish("status", status(true).dump(), true);
      }
    }
    publish("status", status(false).dump(), true);
    mosquitto_loop(link_.get(), 100, 1);
  }

 private:
  void connect() {
    mosquitto_lib_init();
    link_.reset(mosquitto_new((fleet_ + "." + id_).c_str(), false, this));
    mosquitto_int_option(link_.get(), MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5);
    check(mosquitto_tls_set(link_.get(), ca_.c_str(), nullptr, certificate_.c_str(), certificate_.c_str(), nullptr));
    const std::string will = status(false).dump();
    check(mosquitto_will_set(link_.get(), topic("status").c_str(), will.size(), will.data(), 1, true));
    mosquitto_connect_callback_set(link_.get(), [](mosquitto*, void* client, int code) { static_cast<Client*>(client)->connected(code); });
    mosquitto_message_callback_set(link_.get(), [](mosquitto*, void* client, const mosquitto_message* message) {
      static_cast<Client*>(client)->inbox_.emplace_back(message->topic, std::string(static_cast<char*>(message->payload), message->payloadlen));
    });
    mosquitto_property* properties = nullptr;
    check(mosquitto_property_add_int32(&properties, MQTT_PROP_SESSION_EXPIRY_INTERVAL, kSession));
    check(mosquitto_connect_bind_v5(link_.get(), host_.c_str(), port_, kKeepAlive, nullptr, properties));
    mosquitto_property_free_all(&properties);
  }

  void connected(int code) {
    check(code);
    subscribe("shoal/1/" + fleet_ + "/aggregator");
    for (const char* kind : {"plan", "reply"}) {
      subscribe(topic(kind));
    }
    publish("status", status(true).dump(), true);
    check_in();
  }

  void pump(int timeout_ms) {
    if (mosquitto_loop(link_.get(), timeout_ms, 1) != MOSQ_ERR_SUCCESS && !stopped) {
      usleep(200000);
      mosquitto_reconnect(link_.get());
    }
  }

  static void check(int code) {
    if (code) {
      fail(mosquitto_strerror(code));
    }
  }

  std::string topic(const std::string& kind) const {
    return "shoal/1/" + fleet_ + "/device/" + id_ + "/" + kind;
  }

  void subscribe(const std::string& topic) {
    check(mosquitto_subscribe(link_.get(), nullptr, topic.c_str(), 1));
  }

  void publish(const std::string& kind, const std::string& payload, bool retain = false) {
    check(mosquitto_publish(link_.get(), nullptr, topic(kind).c_str(), payload.size(), payload.data(), 1, retain));
  }

  Json status(bool online) const {
    return {{"type", "status"}, {"device_id", id_}, {"online", online}, {"withdrawn", ""}, {"at_s", time_s()}};
  }

  void check_in() {
    const Json message = {{"type", "check-in"}, {"device_id", id_}, {"num_train", train_.count}, {"num_test", test_.count}, {"client", "prototype in C++"},
        {"runtime", "executorch"}, {"protocol", "1.1"}};
    publish("check-in", message.dump());
  }

  // Returns the greater of this device's time and the aggregator's.
  double now_s() const {
    return std::max(time_s(), aggregator_s_ + clock_s());
  }

  void receive(const std::string& topic, const std::string& payload) {
    if (payload.empty() || topic.find("/blob/") != std::string::npos) {
      return; // a blob that came twice
    }
    const Json message = open_signed(payload, root_, fleet_, now_s());
    const std::string type = message.at("type");
    if (type == "aggregator") {
      aggregator_s_ = std::max(aggregator_s_, message.at("at_s").get<double>() - clock_s());
      const bool restarted = !boot_.empty() && boot_ != message.at("boot_id");
      if (restarted || (boot_.empty() && message.at("online"))) {
        check_in();
      }
      boot_ = message.at("boot_id");
    } else if (type == "plan" && message.at("device_id") == id_) {
      accept(message);
    } else if ((type == "acknowledge" || type == "refuse") && message.value("update", "") == digest_) {
      std::fprintf(stderr, "%s\n", message.dump().c_str());
      update_.clear();
    } else if (type == "refuse" && message.at("reason") == "unknown-device") {
      check_in();
    }
  }

  void accept(const Json& plan) {
    const bool again = plan.at("attempt") == attempt_;
    if (again && !update_.empty()) {
      publish("update", update_);
    }
    if (again || plan.at("attempt") < attempt_ || plan.at("deadline_at_s") < now_s()) {
      return;
    }
    attempt_ = plan["attempt"];
    try {
      const std::string digest = plan.at("bundle");
      if (digest != bundle_digest_) {
        bundle_.emplace(fetch(digest), root_, state_);
        bundle_digest_ = digest;
      }
      const Mapped model(fetch(plan.at("model")));
      update_ = Plan(plan, *bundle_, train_, test_, model.bytes(), [this] { pump(0); }).carry_out(id_);
      digest_ = sha256(update_);
      write_file(state_ + "/update", update_);
      publish("update", update_);
    } catch (const std::exception& error) {
      Json decline = {{"type", "decline"}};
      for (const char* field : {"run_id", "epoch", "round", "attempt"}) {
        decline[field] = plan.at(field);
      }
      decline.update(Json{{"device_id", id_}, {"reason", "failed"}, {"detail", error.what()}, {"proof", ""}});
      publish("decline", decline.dump());
    }
  }

  // Returns the path of the blob with this hash, received first if it is not in the state folder.
  std::string fetch(const std::string& digest) {
    const std::string path = state_ + "/" + digest;
    if (access(path.c_str(), R_OK) == 0) {
      return path;
    }
    const std::string payload = receive_blob(digest);
    if (sha256(payload) == digest) {
      write_file(path, payload);
      return path;
    }
    const Json pieces = open_signed(payload, root_, fleet_, now_s());
    if (pieces.at("type") != "pieces" || pieces.at("digest") != digest) {
      fail("a blob does not have its hash");
    }
    std::string whole;
    for (const std::string piece : pieces.at("pieces")) {
      whole += receive_blob(piece);
    }
    if (sha256(whole) != digest) {
      fail("pieces do not have the hash of the whole");
    }
    write_file(path, whole);
    return path;
  }

  std::string receive_blob(const std::string& digest) {
    const std::string topic = "shoal/1/" + fleet_ + "/blob/" + digest;
    subscribe(topic);
    for (double ask_s = clock_s() + kPatience; !stopped; pump(100)) {
      for (auto at = inbox_.begin(); at != inbox_.end(); ++at) {
        if (at->first == topic && !at->second.empty()) {
          std::string payload = std::move(at->second);
          inbox_.erase(at);
          mosquitto_unsubscribe(link_.get(), nullptr, topic.c_str());
          return payload;
        }
      }
      if (clock_s() > ask_s) {
        ask_s = clock_s() + kPatience;
        publish("fetch", Json{{"type", "fetch"}, {"device_id", id_}, {"digest", digest}}.dump());
      }
    }
    fail("stopped");
  }

  const std::string host_;
  const int port_;
  const std::string fleet_, id_, ca_, certificate_, root_;
  const Windows train_, test_;
  const std::string state_;
  std::unique_ptr<mosquitto, decltype(&mosquitto_destroy)> link_{nullptr, mosquitto_destroy};
  std::deque<std::pair<std::string, std::string>> inbox_;
  std::optional<Bundle> bundle_;
  std::string boot_, bundle_digest_, update_, digest_;
  double aggregator_s_ = -1e18;
  int64_t attempt_ = -1;
};

} // namespace

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr, "usage: shoal-prototype HOST PORT FLEET ID CA CERTIFICATE TRUST DATA STATE\n");
    return 2;
  }
  std::signal(SIGTERM, [](int) { stopped = 1; });
  std::signal(SIGINT, [](int) { stopped = 1; });
  try {
    Client(argv).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
