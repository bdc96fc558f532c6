// The few names of Preact, its hooks and signals that all modules use, and `html`, which makes elements of tagged templates.
// Text in a template is always a text node: what names and messages hold is never parsed as HTML.
import { h, render, Fragment, createContext } from "preact";
import { useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback, useContext, useId, useErrorBoundary } from "preact/hooks";
import { signal, computed, effect, batch, useSignal, useComputed, useSignalEffect } from "@preact/signals";
import htm from "htm";

export const html = htm.bind(h);
export {
  h, render, Fragment, createContext, useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback, useContext, useId, useErrorBoundary,
  signal, computed, effect, batch, useSignal, useComputed, useSignalEffect,
};
