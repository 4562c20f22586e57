// The choice of one of eight words (`WordSelect`), for the multiplexers of an ECP5.
//
// Four LUT4 choose by bit 0, and the multiplexers that belong to their slices by bits 1 and 2.
// Lookup tables alone would take six.

module select_8x32 (words, choice, word);
  input [255:0] words;
  input [2:0] choice;
  output [31:0] word;

  genvar i, j;
  generate
    for (i = 0; i < 32; i = i + 1) begin : bit_
      wire [3:0] pair;
      wire low, high;
      for (j = 0; j < 4; j = j + 1) begin : lut
        LUT4 #(.INIT(16'b1100101011001010)) cell (
          .A(words[64*j+i]), .B(words[64*j+32+i]), .C(choice[0]), .D(1'b0), .Z(pair[j]));
      end
      PFUMX low_mux (.ALUT(pair[1]), .BLUT(pair[0]), .C0(choice[1]), .Z(low));
      PFUMX high_mux (.ALUT(pair[3]), .BLUT(pair[2]), .C0(choice[1]), .Z(high));
      L6MUX21 mux (.D0(low), .D1(high), .SD(choice[2]), .Z(word[i]));
    end
  endgenerate
endmodule
