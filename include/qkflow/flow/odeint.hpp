// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

// The only header that includes Boost.Odeint, and only the steppers shipped. Odeint's own eigen.hpp stays out: it adds
// operators to namespace Eigen for everyone. Nothing here specializes a trait for an Eigen type either, so a user who
// does include it meets no conflict: inside the steppers states are a type of our own, OdeState.
#include <Eigen/Core>
#include <boost/numeric/odeint/stepper/bulirsch_stoer.hpp>
#include <boost/numeric/odeint/stepper/controlled_runge_kutta.hpp>
#include <boost/numeric/odeint/stepper/runge_kutta4_classic.hpp>
#include <boost/numeric/odeint/stepper/runge_kutta_cash_karp54.hpp>
#include <boost/numeric/odeint/stepper/runge_kutta_dopri5.hpp>
#include <boost/numeric/odeint/stepper/runge_kutta_fehlberg78.hpp>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "qkflow/math/require.hpp"

namespace qkflow {
namespace detail {

namespace odeint = boost::numeric::odeint;

/// A flat Eigen column vector as the steppers hold it.
template <class Vector>
struct OdeState {
  Vector v;

  OdeState() {
    // Odeint copies its steppers before they hold anything.
    if constexpr (Vector::SizeAtCompileTime != Eigen::Dynamic) v.setZero();
  }
  explicit OdeState(Vector x) : v(std::move(x)) {}
};

}  // namespace detail
}  // namespace qkflow

namespace boost::numeric::odeint {

template <class Vector>
struct is_resizeable<qkflow::detail::OdeState<Vector>> : boost::true_type {};

template <class A, class B>
struct same_size_impl<qkflow::detail::OdeState<A>, qkflow::detail::OdeState<B>> {
  static bool same_size(const qkflow::detail::OdeState<A>& a, const qkflow::detail::OdeState<B>& b) {
    return a.v.size() == b.v.size();
  }
};

template <class A, class B>
struct resize_impl<qkflow::detail::OdeState<A>, qkflow::detail::OdeState<B>> {
  static void resize(qkflow::detail::OdeState<A>& a, const qkflow::detail::OdeState<B>& b) { a.v.resize(b.v.size()); }
};

}  // namespace boost::numeric::odeint

namespace qkflow {
namespace detail {

/// Calls a user's field without knowing its type: every stepper is compiled once per state type, not once per field.
/// Counts evaluations; wraps what the field throws, so that `solve` can tell whose exception it caught.
template <class Vector>
class FieldRef {
 public:
  using Scalar = typename Vector::Scalar;

  template <class Field>
  FieldRef(Field& field, std::size_t& evaluations)
      : field_(std::addressof(field)), evaluations_(&evaluations), call_(&call<Field>) {}

  void operator()(const OdeState<Vector>& x, OdeState<Vector>& dxdt, const Scalar& t) const {
    ++*evaluations_;
    dxdt.v.resize(x.v.size());  // does nothing but the first time
    call_(field_, x.v, dxdt.v, t);
    // A field that assigned a vector of another length would make the algebra read past its end.
    if (dxdt.v.size() != x.v.size()) throw std::length_error("the field: changed the size of dxdt");
  }

 private:
  template <class Field>
  static void call(const void* field, const Vector& x, Vector& dxdt, const Scalar& t) {
    try {
      (*static_cast<Field*>(const_cast<void*>(field)))(x, dxdt, t);
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string("the field threw: ") + error.what());
    } catch (...) {
      throw std::runtime_error("the field threw something that is no std::exception");
    }
  }

  const void* field_;
  std::size_t* evaluations_;
  void (*call_)(const void*, const Vector&, Vector&, const Scalar&);
};

/// Odeint's vector operations as one loop over data(), for dynamic and fixed size alike.
struct FlatAlgebra {
  template <class Op, class First, class... Rest>
  static void each(Op op, First& first, Rest&... rest) {
    loop(op, first.v.size(), first.v.data(), rest.v.data()...);
  }
  static void for_each1(auto& a, auto op) { each(op, a); }
  static void for_each2(auto& a, auto& b, auto op) { each(op, a, b); }
  static void for_each3(auto& a, auto& b, auto& c, auto op) { each(op, a, b, c); }
  static void for_each4(auto& a, auto& b, auto& c, auto& d, auto op) { each(op, a, b, c, d); }
  static void for_each5(auto& a, auto& b, auto& c, auto& d, auto& e, auto op) { each(op, a, b, c, d, e); }
  static void for_each6(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto op) { each(op, a, b, c, d, e, f); }
  static void for_each7(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto op) {
    each(op, a, b, c, d, e, f, g);
  }
  static void for_each8(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto op) {
    each(op, a, b, c, d, e, f, g, h);
  }
  static void for_each9(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto op) {
    each(op, a, b, c, d, e, f, g, h, i);
  }
  static void for_each10(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto& j,
                         auto op) {
    each(op, a, b, c, d, e, f, g, h, i, j);
  }
  static void for_each11(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto& j,
                         auto& k, auto op) {
    each(op, a, b, c, d, e, f, g, h, i, j, k);
  }
  static void for_each12(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto& j,
                         auto& k, auto& l, auto op) {
    each(op, a, b, c, d, e, f, g, h, i, j, k, l);
  }
  static void for_each13(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto& j,
                         auto& k, auto& l, auto& m, auto op) {
    each(op, a, b, c, d, e, f, g, h, i, j, k, l, m);
  }
  static void for_each14(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto& j,
                         auto& k, auto& l, auto& m, auto& n, auto op) {
    each(op, a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
  static void for_each15(auto& a, auto& b, auto& c, auto& d, auto& e, auto& f, auto& g, auto& h, auto& i, auto& j,
                         auto& k, auto& l, auto& m, auto& n, auto& o, auto op) {
    each(op, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  }

  /// max |x_i|, and infinity if any entry is not a number: Odeint accepts every step whose error is not above 1, so a
  /// NaN that stayed a NaN would be accepted.
  template <class Vector>
  static typename Vector::Scalar norm_inf(const OdeState<Vector>& x) {
    using Scalar = typename Vector::Scalar;
    using std::abs;
    Scalar largest(0);
    bool not_a_number = false;
    const Scalar* data = x.v.data();
    for (Eigen::Index i = 0, size = x.v.size(); i < size; ++i) {
      const Scalar value = abs(data[i]);
      largest = value > largest ? value : largest;
      not_a_number |= value != value;
    }
    return not_a_number ? std::numeric_limits<Scalar>::infinity() : largest;
  }

 private:
  template <class Op, class... Pointers>
  static void loop(Op op, Eigen::Index size, Pointers... data) {
    for (Eigen::Index i = 0; i < size; ++i) op(data[i]...);
  }
};

struct FlatOperations : odeint::default_operations {
  /// Odeint's scaled error |e| / (atol + rtol (|x| + |dt dxdt|)), except that an exact component (0 / 0 at atol = 0)
  /// has no error.
  template <class Factor = double>
  struct rel_error {  // NOLINT(readability-identifier-naming): the name Odeint asks for
    Factor atol, rtol, x_weight, dxdt_weight;
    rel_error(Factor a, Factor r, Factor x, Factor dxdt) : atol(a), rtol(r), x_weight(x), dxdt_weight(dxdt) {}
    template <class Scalar>
    void operator()(Scalar& error, const Scalar& x, const Scalar& dxdt) const {
      using std::abs;
      const Scalar scale = atol + rtol * (x_weight * abs(x) + dxdt_weight * abs(dxdt));
      error = error == Scalar(0) ? Scalar(0) : Scalar(abs(error) / scale);
    }
    using result_type = void;
  };
};

/// Every Odeint stepper on flat states; always_resizer, so that one reused for a longer state moves all of it.
template <template <class, class, class, class, class, class, class> class Stepper, class Vector>
using OnFlat = Stepper<OdeState<Vector>, typename Vector::Scalar, OdeState<Vector>, typename Vector::Scalar,
                       FlatAlgebra, FlatOperations, odeint::always_resizer>;

template <class Stepper>
odeint::controlled_runge_kutta<Stepper> controlled(const typename Stepper::value_type& rtol,
                                                   const typename Stepper::value_type& atol) {
  using Controlled = odeint::controlled_runge_kutta<Stepper>;
  return Controlled(typename Controlled::error_checker_type(atol, rtol));  // absolute first, as make_controlled
}

// What `solve` asks of a stepper, all out of place; x and its velocity f are those at t:
//   try_step(field, x, f, t, h, x_new, f_new)  tries a step of h, leaves in h the size to try next; true if accepted
//   restep(field, x, f, t, h, out, scratch)    one step of h below one just accepted: no error control needed
//   interpolate(fraction, h, x, f, x_new, f_new, out)  inside the step just accepted, if `dense`
// `first_same_as_last`: an accepted try_step leaves the velocity at x_new in f_new.
// `remembers_step`: loses its adapted order when given another h than the one it proposed.

template <class Vector>
class FixedStepper {
 public:
  using Scalar = typename Vector::Scalar;
  using State = OdeState<Vector>;
  static constexpr bool first_same_as_last = false, remembers_step = false;

  FixedStepper(const Scalar& /*rtol*/, const Scalar& /*atol*/, const Scalar& /*max_step*/) {}
  bool try_step(FieldRef<Vector> field, const State& x, const State& f, Scalar t, Scalar& h, State& x_new, State&) {
    x_new.v.resize(x.v.size());
    stepper_.do_step(field, x, f, t, x_new, h);
    return true;
  }
  void restep(FieldRef<Vector> field, const State& x, const State& f, const Scalar& t, const Scalar& h, State& out,
              State&) {
    out.v.resize(x.v.size());
    stepper_.do_step(field, x, f, t, out, h);
  }

 private:
  OnFlat<odeint::runge_kutta4_classic, Vector> stepper_;
};

template <class Vector, class Stepper>
class EmbeddedStepper {
 public:
  using Scalar = typename Vector::Scalar;
  using State = OdeState<Vector>;
  static constexpr bool first_same_as_last = false, remembers_step = false;

  EmbeddedStepper(const Scalar& rtol, const Scalar& atol, const Scalar& /*max_step*/)
      : controlled_(controlled<Stepper>(rtol, atol)) {}
  bool try_step(FieldRef<Vector> field, const State& x, const State& f, Scalar t, Scalar& h, State& x_new, State&) {
    x_new.v.resize(x.v.size());
    return controlled_.try_step(field, x, f, t, x_new, h) == odeint::success;
  }
  void restep(FieldRef<Vector> field, const State& x, const State& f, const Scalar& t, const Scalar& h, State& out,
              State&) {
    out.v.resize(x.v.size());
    controlled_.stepper().do_step(field, x, f, t, out, h);
  }

 private:
  odeint::controlled_runge_kutta<Stepper> controlled_;
};

template <class Vector>
class DormandPrinceStepper {
 public:
  using Scalar = typename Vector::Scalar;
  using State = OdeState<Vector>;
  static constexpr bool first_same_as_last = true, remembers_step = false;

  DormandPrinceStepper(const Scalar& rtol, const Scalar& atol, const Scalar& /*max_step*/)
      : controlled_(controlled<Stepper>(rtol, atol)) {}
  bool try_step(FieldRef<Vector> field, const State& x, const State& f, Scalar t, Scalar& h, State& x_new,
                State& f_new) {
    x_new.v.resize(x.v.size());
    return controlled_.try_step(field, x, f, t, x_new, f_new, h) == odeint::success;
  }
  void restep(FieldRef<Vector> field, const State& x, const State& f, const Scalar& t, const Scalar& h, State& out,
              State& scratch) {
    out.v.resize(x.v.size());
    controlled_.stepper().do_step(field, x, f, t, out, scratch, h);
  }
  /// From time 0 to h rather than t to t + h: at late times the fraction would lose its digits in t.
  void interpolate(const Scalar& fraction, const Scalar& h, const State& x, const State& f, const State& x_new,
                   const State& f_new, State& out) const {
    out.v.resize(x.v.size());
    controlled_.stepper().calc_state(Scalar(fraction * h), out, x, f, Scalar(0), x_new, f_new, h);
  }

 private:
  using Stepper = OnFlat<odeint::runge_kutta_dopri5, Vector>;
  odeint::controlled_runge_kutta<Stepper> controlled_;
};

template <class Vector>
class ExtrapolationStepper {
 public:
  using Scalar = typename Vector::Scalar;
  using State = OdeState<Vector>;
  static constexpr bool first_same_as_last = false, remembers_step = true;

  ExtrapolationStepper(const Scalar& rtol, const Scalar& atol, const Scalar& max_step)
      : stepper_(atol, rtol, Scalar(1), Scalar(1), max_step_for_odeint(max_step)), restepper_(atol, rtol) {}
  bool try_step(FieldRef<Vector> field, const State& x, const State& f, Scalar t, Scalar& h, State& x_new, State&) {
    x_new.v.resize(x.v.size());
    return stepper_.try_step(field, x, f, t, x_new, h) == odeint::success;
  }
  /// On an instance of its own: a step size given from outside makes the stepper forget the order it has found, and
  /// asking for a state between steps must not change the steps. Mostly one step; more where the order found matters.
  void restep(FieldRef<Vector> field, const State& x, const State& f, const Scalar& t, const Scalar& h, State& out,
              State& scratch) {
    out.v.resize(x.v.size());
    restepper_.reset();
    Scalar time = t, step = h;
    if (restepper_.try_step(field, x, f, time, out, step) == odeint::success) return;
    State start = x;
    Scalar done(0);
    for (int tries = 0; done < h; ++tries) {
      if (tries > 10000) throw std::runtime_error("no convergence while looking inside a step");
      const bool last = step >= h - done;
      Scalar trial = last ? Scalar(h - done) : step;
      field(start, scratch, Scalar(t + done));
      time = t + done;
      const Scalar taken = trial;
      const bool accepted = restepper_.try_step(field, start, scratch, time, out, trial) == odeint::success;
      if (!last || !accepted) step = trial;
      if (!accepted) continue;
      done = last ? h : Scalar(done + taken);
      start.v.swap(out.v);
    }
    out.v.swap(start.v);
  }

 private:
  /// Odeint writes "no limit" as 0.
  static Scalar max_step_for_odeint(const Scalar& max_step) {
    using std::isfinite;
    return isfinite(max_step) ? max_step : Scalar(0);
  }
  OnFlat<odeint::bulirsch_stoer, Vector> stepper_, restepper_;
};

}  // namespace detail

/// The methods `solve` knows, each a type of its own:
///   name      as a program's option spells it
///   order     error of a fixed step h over a fixed time is O(h^order)
///   adaptive  chooses its steps from rtol and atol; if not, every step is `first_step`
///   dense     states between steps come from an interpolant; if not, from a shorter step out of the same start, which
///             has the full order and costs the evaluations of a step

/// Classical Runge-Kutta, fixed step, 4 evaluations.
struct RungeKutta4 {
  static constexpr std::string_view name = "rk4";
  static constexpr int order = 4;
  static constexpr bool adaptive = false, dense = false;
  template <class Vector>
  using Stepper = detail::FixedStepper<Vector>;
};

/// Cash-Karp 5(4), 6 evaluations.
struct CashKarp54 {
  static constexpr std::string_view name = "cash-karp";
  static constexpr int order = 5;
  static constexpr bool adaptive = true, dense = false;
  template <class Vector>
  using Stepper =
      detail::EmbeddedStepper<Vector, detail::OnFlat<boost::numeric::odeint::runge_kutta_cash_karp54, Vector>>;
};

/// Dormand-Prince 5(4), 6 evaluations (the seventh is the first of the next step). The default.
struct DormandPrince5 {
  static constexpr std::string_view name = "dopri5";
  static constexpr int order = 5;
  static constexpr bool adaptive = true, dense = false;
  template <class Vector>
  using Stepper = detail::DormandPrinceStepper<Vector>;
};

/// The same steps, with saved times interpolated to fourth order: no evaluations, and about a digit less than the
/// steps. Stops are located by shorter steps here too, to the accuracy of the method.
struct DormandPrince5Dense {
  static constexpr std::string_view name = "dopri5-dense";
  static constexpr int order = 5;
  static constexpr bool adaptive = true, dense = true;
  template <class Vector>
  using Stepper = detail::DormandPrinceStepper<Vector>;
};

/// Fehlberg 7(8), 13 evaluations, the eighth-order result kept: few steps at tight tolerances. Its error estimate
/// vanishes on fields that depend on t alone: there set max_step.
struct Fehlberg78 {
  static constexpr std::string_view name = "fehlberg78";
  static constexpr int order = 8;
  static constexpr bool adaptive = true, dense = false;
  template <class Vector>
  using Stepper =
      detail::EmbeddedStepper<Vector, detail::OnFlat<boost::numeric::odeint::runge_kutta_fehlberg78, Vector>>;
};

/// Bulirsch-Stoer: modified midpoint rule extrapolated, order chosen step by step; `order` is the lowest, 16 the
/// highest.
struct BulirschStoer {
  static constexpr std::string_view name = "bulirsch-stoer";
  static constexpr int order = 4;
  static constexpr bool adaptive = true, dense = false;
  template <class Vector>
  using Stepper = detail::ExtrapolationStepper<Vector>;
};

/// A method type: see above.
template <class Method>
concept OdeMethod = requires {
  { Method::name } -> std::convertible_to<std::string_view>;
  { Method::order } -> std::convertible_to<int>;
  { Method::adaptive } -> std::convertible_to<bool>;
  { Method::dense } -> std::convertible_to<bool>;
  typename Method::template Stepper<Eigen::VectorXd>;
};

static_assert(OdeMethod<RungeKutta4> && OdeMethod<CashKarp54> && OdeMethod<DormandPrince5> &&
              OdeMethod<DormandPrince5Dense> && OdeMethod<Fehlberg78> && OdeMethod<BulirschStoer>);

/// Calls `visitor(Method{})` with the method of that name: the one run-time choice. Returns what the visitor returns.
/// Throws InvalidArgument listing the names for any other.
template <class Visitor>
auto with_method(std::string_view name, Visitor&& visitor) {
  if (name == RungeKutta4::name) return visitor(RungeKutta4{});
  if (name == CashKarp54::name) return visitor(CashKarp54{});
  if (name == DormandPrince5::name) return visitor(DormandPrince5{});
  if (name == DormandPrince5Dense::name) return visitor(DormandPrince5Dense{});
  if (name == Fehlberg78::name) return visitor(Fehlberg78{});
  if (name == BulirschStoer::name) return visitor(BulirschStoer{});
  throw InvalidArgument("with_method: name = " + std::string(name) +
                        ", but it must be one of rk4, cash-karp, dopri5, dopri5-dense, fehlberg78, bulirsch-stoer");
}

}  // namespace qkflow
